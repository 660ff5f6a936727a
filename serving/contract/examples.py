"""An example of each request, for the OpenAPI document. A test sends all of them to the endpoint."""

from collections.abc import Mapping
from typing import Any

from kopt.core.audit import digest_of

_POD = {
    "metadata": {"name": "finetune"},
    "spec": {
        "containers": [
            {
                "name": "main",
                "image": "registry.example.com/train:1",
                "command": ["litgpt", "finetune_lora", "meta-llama/Llama-3.2-1B", "--precision", "bf16-true"],
                "resources": {"limits": {"nvidia.com/gpu": "1"}},
            }
        ]
    },
}
_NODE = {
    "schema": "kopt/v1",
    "kind": "node",
    "node": "gpu-1",
    "vendor": "nvidia",
    "gpus": [{"index": index, "name": "NVIDIA A100-SXM4-80GB"} for index in range(4)],
    "links": [{"a": a, "b": b, "type": "NVLINK", "count": 12} for a in range(4) for b in range(a + 1, 4)],
}

_RECORD = (
    '{"at_s":1795863600.25,"chain":"preemption/kopt-preemption-7c/1795860000","component":"preemption",'
    '"kind":"event","object":{"kind":"Workload","name":"job-train","namespace":"research"},"previous":"'
    + "0" * 64
    + '","reason":"Evicted","sequence":1,"text":"It gives way to job-urgent.","verb":"Evicting"}'
)

EXAMPLES: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "AuditRequest": {
        "an event": {
            "summary": "The first record of a process",
            "value": {"records": [{"text": _RECORD, "digest": digest_of(_RECORD)}]},
        },
    },
    "DemandRequest": {
        "by name": {
            "summary": "A service whose demand is pushed",
            "value": {"series": [{"name": "research/chat"}], "horizons_s": [300, 1800], "quantiles": [0.5, 0.99]},
        },
        "with a history": {
            "summary": "A history of one's own, and what one GPU serves",
            "value": {
                "series": [{"name": "chat", "t": [0, 300, 600, 900], "value": [210.0, 225.0, None, 240.0]}],
                "capacity_per_gpu": 100.0,
            },
        },
    },
    "PushRequest": {
        "buckets": {
            "summary": "Two buckets of five minutes",
            "value": {"t": [1790000100, 1790000400], "value": [210.0, 225.0]},
        },
    },
    "InferRequest": {
        "history": {
            "summary": "One history",
            "value": {
                "inputs": [
                    {"name": "value", "shape": [1, 3], "datatype": "FP64", "data": [210.0, 225.0, 240.0]},
                    {"name": "step_s", "shape": [1], "datatype": "INT64", "data": [300]},
                ]
            },
        },
    },
    "SizingRequest": {
        "pod": {"summary": "A pod", "value": {"workload": _POD, "gpu": "a100-80gb"}},
        "command": {"summary": "A command line", "value": {"workload": "torchrun --nproc-per-node 8 train.py"}},
        "scaling": {
            "summary": "How many GPUs are useful, by a step's time of one's own",
            "value": {
                "workload": "torchrun --nproc-per-node 2 pretrain_gpt.py --num-layers 24 --hidden-size 1024 "
                "--num-attention-heads 16 --seq-length 1024 --max-position-embeddings 1024 --micro-batch-size 4 "
                "--global-batch-size 64 --bf16",
                "gpu": "a100-80gb",
                "scaling": True,
                "measured_steps": {"2": 1.5},
            },
        },
    },
    "CheckpointRequest": {
        "lines": {
            "summary": "Lines of a log",
            "value": {
                "job": "research/llama",
                "first": 1,
                "lines": ["step 100 loss 2.31", "Saving model checkpoint to out/checkpoint-100", "step 101 loss 2.30"],
                "gpus": 8,
            },
        },
        "state": {"summary": "Its state now", "value": {"job": "research/llama"}},
    },
    "BandwidthRequest": {
        "sets": {
            "summary": "Two sets of a node's GPUs",
            "value": {"topology": _NODE, "gpu_sets": [[0, 1], [0, 1, 2, 3]], "bytes": 67108864},
        },
    },
    "PairsRequest": {
        "pair": {
            "summary": "What a pair of nodes reached",
            "value": {
                "cluster": "main",
                "pairs": [
                    {
                        "nodes": ["gpu-1", "gpu-2"],
                        "gpus_per_node": 8,
                        "collective": "all_reduce",
                        "measured_at": 1790000000.0,
                        "points": [{"bytes": 67108864, "latency_us": 820.0}],
                    }
                ],
            },
        },
    },
    "RunTimeRequestIn": {
        "before it starts": {
            "summary": "A job that waits",
            "value": {"queue": "research", "gpus": 8, "name": "finetune", "user": "ada"},
        },
        "while it runs": {
            "summary": "A job whose log shows its steps",
            "value": {
                "queue": "research",
                "gpus": 8,
                "started_s": 1795860000.0,
                "at_s": 1795863600.0,
                "progress": {"step": 1200, "steps": 5000, "at_s": 1795863590.0, "step_seconds": [2.9, 3.0, 3.1]},
            },
        },
    },
    "RunTimesRequest": {
        "queue": {
            "summary": "A job that runs, and two that wait",
            "value": {
                "at_s": 1795863600.0,
                "jobs": [
                    {"id": "ml/a", "queue": "research", "gpus": 8, "started_s": 1795860000.0},
                    {"id": "ml/b", "queue": "research", "gpus": 8},
                    {"id": "ml/c", "queue": "research", "gpus": 16, "name": "finetune"},
                ],
            },
        },
    },
    "StartsRequest": {
        "in a queue": {
            "summary": "A job that starts in 12 minutes by half of the draws, in 41 by nine of ten",
            "value": {
                "starts": [
                    {"job": "5f1c", "queue": "research", "at_s": 1795863600.0, "p50_s": 720.0, "p90_s": 2460.0},
                ],
            },
        },
    },
    "RunsRequest": {
        "start and end": {
            "summary": "A run that ended, and one that goes on",
            "value": {
                "cluster": "eu-1",
                "runs": [
                    {"job": "a1", "queue": "research", "gpus": 8, "started_s": 1795860000.0, "ended_s": 1795863600.0},
                    {"job": "a2", "queue": "research", "gpus": 8, "name": "finetune", "started_s": 1795863700.0},
                ],
            },
        },
    },
}
"""By the name of the request, and of the example: OpenAPI's Example Objects."""
