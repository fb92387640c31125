{{- define "multisched.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- else if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "multisched.selectorLabels" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "multisched.labels" -}}
{{ include "multisched.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "multisched.image" -}}
{{- with .Values.image -}}
{{- if .digest -}}
{{- printf "%s@%s" .repository .digest -}}
{{- else -}}
{{- printf "%s:%s" .repository (.tag | default $.Chart.AppVersion) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* The domains as the configuration has them, JSON: {"domains": [...]}. */}}
{{- define "multisched.domains" -}}
{{- $domains := list (dict "name" "forecast") (dict "name" "gpu") (dict "name" "job") -}}
{{- with .Values.config.domains -}}{{- $domains = deepCopy . -}}{{- end -}}
{{- dict "domains" $domains | toJson -}}
{{- end -}}

{{/* What Leases, and the ConfigMaps of repair and quotas, begin with. */}}
{{- define "multisched.prefix" -}}
{{- dig "lease" "namePrefix" "multisched" .Values.config -}}
{{- end -}}

{{/* Names of the domains that keep state in a ConfigMap, JSON: {"names": [...]}: those that run PeakForecast, GpuTide or DeadlineSort. */}}
{{- define "multisched.keepingState" -}}
{{- $names := list -}}
{{- range (include "multisched.domains" . | fromJson).domains -}}
{{- $base := dig "profile" "base" .name . | default .name -}}
{{- $enabled := dig "profile" "plugins" "enabled" list . -}}
{{- $runs := or (has $base (list "forecast" "gpu" "job")) (eq .name $.Values.forecast.domain) -}}
{{- range $enabled }}{{ if has .name (list "PeakForecast" "GpuTide" "DeadlineSort") }}{{ $runs = true }}{{ end }}{{ end -}}
{{- if $runs }}{{ $names = append $names .name }}{{ end -}}
{{- end -}}
{{- dict "names" $names | toJson -}}
{{- end -}}

{{/* Names of the domains that place GPUs, JSON: {"names": [...]}: those that run GpuShare. */}}
{{- define "multisched.placingGpus" -}}
{{- $names := list -}}
{{- range (include "multisched.domains" . | fromJson).domains -}}
{{- $runs := eq (dig "profile" "base" .name . | default .name) "gpu" -}}
{{- range dig "profile" "plugins" "enabled" list . }}{{ if eq .name "GpuShare" }}{{ $runs = true }}{{ end }}{{ end -}}
{{- if $runs }}{{ $names = append $names .name }}{{ end -}}
{{- end -}}
{{- dict "names" $names | toJson -}}
{{- end -}}

{{/* What `forecast` and `repair` make of the arguments of PeakForecast, JSON; {} where they say nothing. */}}
{{- define "multisched.forecastArgs" -}}
{{- $forecast := .Values.forecast -}}
{{- $sources := list -}}
{{- if $forecast.prometheus.url -}}
{{- $source := dict "type" "prometheus" "url" $forecast.prometheus.url -}}
{{- $sources = append $sources (merge $source (deepCopy $forecast.prometheus.settings)) -}}
{{- end -}}
{{- if $forecast.metricsApi }}{{ $sources = append $sources (dict "type" "metrics-api") }}{{ end -}}
{{- $args := deepCopy $forecast.args -}}
{{- if $sources -}}
{{- $history := dict "sources" $sources "dimensions" $forecast.dimensions -}}
{{- $_ := set $args "history" (merge $history (deepCopy $forecast.history)) -}}
{{- if not $args.profilesFile }}{{ $_ := set $args "profilesFile" "/var/lib/multisched/profiles" }}{{ end -}}
{{- else if $forecast.history -}}
{{- fail "forecast.history: there is no source; set forecast.prometheus.url or forecast.metricsApi" -}}
{{- end -}}
{{- with .Values.repair.settings }}{{ $_ := set $args "repair" . }}{{ end -}}
{{- $args | toJson -}}
{{- end -}}

{{/* The domains with those arguments, JSON: {"domains": [...]}. Refuses to guess which of two are meant. */}}
{{- define "multisched.forecastDomains" -}}
{{- $args := include "multisched.forecastArgs" . | fromJson -}}
{{- $found := list -}}
{{- $seen := false -}}
{{- range (include "multisched.domains" . | fromJson).domains -}}
{{- $domain := . -}}
{{- if eq .name $.Values.forecast.domain -}}
{{- $seen = true -}}
{{- $enabled := dig "profile" "plugins" "enabled" list . -}}
{{- range $enabled -}}
{{- if eq .name "PeakForecast" -}}
{{- fail (printf "forecast and repair.settings: config.domains has arguments of PeakForecast for %s already; keep either" $domain.name) -}}
{{- end -}}
{{- end -}}
{{- $enabled = append $enabled (dict "name" "PeakForecast" "args" $args) -}}
{{- $profile := dig "profile" dict . -}}
{{- $plugins := set (dig "plugins" dict $profile) "enabled" $enabled -}}
{{- $domain = set . "profile" (set $profile "plugins" $plugins) -}}
{{- end -}}
{{- $found = append $found $domain -}}
{{- end -}}
{{- if not $seen -}}
{{- fail (printf "forecast.domain: config.domains has no %s; name one of them" .Values.forecast.domain) -}}
{{- end -}}
{{- dict "domains" $found | toJson -}}
{{- end -}}

{{/* The section `server`, JSON: what the chart needs, and what config.server says. */}}
{{- define "multisched.server" -}}
{{- $server := dict "bindAddress" "0.0.0.0" "port" 10260 "probePort" 10261 "tls" (dict "selfSigned" true) -}}
{{- $asked := deepCopy (.Values.config.server | default dict) -}}
{{- if .Values.quotaWebhook.enabled -}}
{{- $tls := dict "certFile" "/etc/multisched-tls/tls.crt" "keyFile" "/etc/multisched-tls/tls.key" -}}
{{- $asked = merge (dict "quotaWebhook" true "tls" $tls) $asked -}}
{{- end -}}
{{- if dig "tls" "certFile" "" $asked }}{{ $_ := unset $server "tls" }}{{ end -}}
{{- mergeOverwrite $server $asked | toJson -}}
{{- end -}}

{{/* The configuration file. */}}
{{- define "multisched.config" -}}
{{- $config := deepCopy .Values.config -}}
{{- $_ := set $config "apiVersion" "multisched.io/v1" -}}
{{- $_ := set $config "kind" "MultischedConfiguration" -}}
{{- $_ := set $config "server" (include "multisched.server" . | fromJson) -}}
{{- if include "multisched.forecastArgs" . | fromJson -}}
{{- $_ := set $config "domains" (include "multisched.forecastDomains" . | fromJson).domains -}}
{{- end -}}
{{- toYaml $config -}}
{{- end -}}

{{/* Selects the namespaces of scrapers. A default among the values would be merged with what a user says. */}}
{{- define "multisched.scrapers" -}}
{{- .Values.networkPolicy.scrapers | default (dict "matchLabels" (dict "multisched.io/scrapers" "true")) | toYaml -}}
{{- end -}}
