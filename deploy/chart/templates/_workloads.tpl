{{/* API groups and resources with a pod template: the table of the webhook (a test compares the two). */}}
{{- define "kopt.workloads" -}}
"": [pods]
apps: [deployments, statefulsets]
batch: [jobs, cronjobs]
batch.volcano.sh: [jobs]
jobset.x-k8s.io: [jobsets]
kaiwo.silogen.ai: [kaiwojobs, kaiwoservices]
kubeflow.org: [mpijobs, pytorchjobs]
leaderworkerset.x-k8s.io: [leaderworkersets]
ray.io: [rayclusters, rayjobs, rayservices]
serving.kserve.io: [inferenceservices]
trainer.kubeflow.org: [trainjobs]
{{- end }}
