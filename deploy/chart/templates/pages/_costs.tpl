{{/* Where the pages read costs: secret, key and port of a PostgreSQL; an empty secret where there is none. */}}
{{- define "kopt.pagesCosts" -}}
{{- if .Values.pages.costs.secret }}
{{- toYaml .Values.pages.costs }}
{{- else if .Values.meter.enabled }}
{{- toYaml .Values.meter.database }}
{{- else }}
{{- toYaml .Values.pages.costs }}
{{- end }}
{{- end }}
