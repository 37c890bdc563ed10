{{- define "kernelbroker.name" -}}
{{- $name := contains "kernelbroker" .Release.Name | ternary .Release.Name (printf "%s-kernelbroker" .Release.Name) }}
{{- $name | trunc 50 | trimSuffix "-" }}
{{- end }}

{{- define "kernelbroker.sandboxes" -}}
{{- .Values.sandboxes.namespace | default (printf "%s-sandboxes" (include "kernelbroker.name" .)) }}
{{- end }}

{{- define "kernelbroker.secret" -}}
{{- .Values.broker.secret | default (include "kernelbroker.name" .) }}
{{- end }}

{{- define "kernelbroker.selector" -}}
app.kubernetes.io/name: kernelbroker
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: broker
{{- end }}

{{- define "kernelbroker.labels" -}}
{{ include "kernelbroker.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- /* What cannot work is refused here, before anything is installed. */}}
{{- define "kernelbroker.check" -}}
{{- if and (not .Values.store.urlFrom) (or (gt (int .Values.broker.replicas) 1) .Values.autoscaling.enabled) }}
{{- fail "several brokers need a store that they share: set store.urlFrom, or broker.replicas=1 and autoscaling.enabled=false" }}
{{- end }}
{{- if eq (include "kernelbroker.sandboxes" .) .Release.Namespace }}
{{- fail "sandboxes need a namespace of their own: the broker may read all Secrets of theirs. Set sandboxes.namespace" }}
{{- end }}
{{- end }}
