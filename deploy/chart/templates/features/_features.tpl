{{/* JSON: {accounts: [...]} of the components that are on and whose features have switches; `core/switches.py` lists them. */}}
{{- define "kopt.switched" -}}
{{- $accounts := list -}}
{{- range $key, $component := dict "webhook" "webhook" "extender" "extender" "sizing" "sizing" "pairwise" "pairs" "preemption" "preemption" "lending" "reallocation" "staging" "staging" "autoscaling" "autoscaling" "queues" "queues" "gangs" "gangs" "reservations" "reservations" "meter" "meter" "partitions" "partitions" "health" "health" "rightsizing" "rightsizing" -}}
{{- if (get $.Values $key).enabled -}}
{{- $accounts = append $accounts (printf "kopt-%s" $component) -}}
{{- end -}}
{{- end -}}
{{- dict "accounts" $accounts | toJson -}}
{{- end }}

{{/* Of these the ones that see alarms, and may switch their features off. */}}
{{- define "kopt.falling" -}}
{{- $accounts := list -}}
{{- range (include "kopt.switched" . | fromJson).accounts -}}
{{- if has . (list "kopt-webhook" "kopt-extender" "kopt-sizing" "kopt-reallocation" "kopt-autoscaling") -}}
{{- $accounts = append $accounts . -}}
{{- end -}}
{{- end -}}
{{- dict "accounts" $accounts | toJson -}}
{{- end }}
