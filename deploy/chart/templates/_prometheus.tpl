{{/* A Prometheus that a component asks: what its pod needs for `prometheus.tokenSecret` and `.caSecret`. Given that section. */}}

{{- define "kopt.prometheusMounts" -}}
{{- if .tokenSecret }}
- {name: prometheus-token, mountPath: /etc/kopt/prometheus, readOnly: true}
{{- end }}
{{- if .caSecret }}
- {name: prometheus-ca, mountPath: /etc/kopt/prometheus-ca, readOnly: true}
{{- end }}
{{- end }}

{{- define "kopt.prometheusVolumes" -}}
{{- with .tokenSecret }}
- {name: prometheus-token, secret: {secretName: {{ . }}, defaultMode: 0440, items: [{key: token, path: token}]}}
{{- end }}
{{- with .caSecret }}
- {name: prometheus-ca, secret: {secretName: {{ . }}, items: [{key: ca.crt, path: ca.crt}]}}
{{- end }}
{{- end }}
