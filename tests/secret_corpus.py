"""Made-up secrets in the places where secrets stand, and harmless text that looks like them.

Values are drawn anew for each seed and heads are put together from parts, so that no scanner
takes this file for a leak.
"""

import random
import string
from collections.abc import Callable, Iterator
from dataclasses import dataclass

_ALNUM = string.ascii_letters + string.digits


def _drawn(rng: random.Random, length: int, letters: str = _ALNUM) -> str:
    """Letters and at least one digit, as generated secrets have."""
    value = "".join(rng.choice(letters) for _ in range(length - 2))
    return value[:3] + "7" + value[3:] + "q"


def plain(rng: random.Random) -> str:
    return _drawn(rng, 20)


def odd(rng: random.Random) -> str:
    """With the marks that people are told to use."""
    value = _drawn(rng, 16)
    return value[:5] + rng.choice("!#%*+^~") + value[5:11] + rng.choice("_.-") + value[11:]


def hexadecimal(rng: random.Random) -> str:
    return _drawn(rng, 40, "0123456789abcdef").replace("q", "e")


def base64like(rng: random.Random) -> str:
    return _drawn(rng, 38, _ALNUM + "+/") + "=" * 2


def headed(*parts: str, length: int = 36, letters: str = _ALNUM) -> Callable[[random.Random], str]:
    """Known by its head alone."""
    return lambda rng: "".join(parts) + _drawn(rng, length, letters)


def token_of_three(rng: random.Random) -> str:
    return "ey" + "J" + _drawn(rng, 20) + "." + "ey" + "J" + _drawn(rng, 30) + "." + _drawn(rng, 40, _ALNUM + "-_")


Value = Callable[[random.Random], str]


@dataclass(frozen=True)
class Form:
    """Where a secret stands: ``{}`` is its place. ``words`` are arguments, ``text`` is a line."""

    template: str
    value: Value = plain

    def drawn(self, seed: int) -> tuple[str, str]:
        """The secret, and the text that holds it."""
        secret = self.value(random.Random(f"{self.template} {seed}"))
        return secret, self.template.replace("{}", secret)


IN_URLS = (
    "postgres://train:{}@db.internal:5432/runs",
    "postgresql+psycopg2://a:{}@10.0.0.3/mlflow",
    "mysql://root:{}@db/x",
    "redis://:{}@cache:6379/0",
    "rediss://default:{}@cache:6380",
    "mongodb+srv://svc:{}@cluster0.example.net/?w=majority",
    "amqp://guest:{}@mq:5672//",
    "https://me:{}@git.example.org/repo.git",
    "git clone https://oauth2:{}@gitlab.example/x",
    "pip install git+https://{}@git.example.org/team/repo.git@v1.2",
    "--index-url https://bob:{}@pypi.example/simple",
    "ftp://anonymous:{}@files.example/a",
    "s3://key:{}@bucket/path",
    "http://proxy:{}@10.1.1.1:3128",
    "jdbc:postgresql://db/x?user=me&password={}&ssl=true",
    "https://example.org/cb?code=1&access_token={}&state=2",
    "https://b.s3.example/x?X-Amz-Algorithm=AWS4&X-Amz-Signature={}&X-Amz-Expires=60",
    "https://b.s3.example/x?X-Amz-Security-Token={}",
    "https://acc.blob.example/c?sv=2024-01-01&sig={}&se=2025",
    "https://storage.example/x?GoogleAccessId=a&Expires=1&Signature={}",
    "wss://host/stream?token={}",
    "https://api.example/v1?api_key={}",
    "https://api.example/v1?q=a&apikey={}#frag",
    "mlflow: http://u:{}@mlflow:5000",
    "tracking_uri=https://me:{}@mlflow.example",
    "HTTPS_PROXY=http://me:{}@proxy:8080",
    "sftp://u:{}@h/p?x=1",
)
IN_OPTIONS = (
    "train.py --password {}",
    "train.py --password={}",
    "train.py --db-password {} --lr 0.1",
    "mysql -u root -p {} db",
    "mysqldump -uroot -p{} db",
    "curl -u alice:{} https://example.org",
    "curl --user alice:{} https://example.org",
    "curl -ualice:{} https://example.org",
    "sshpass -p {} ssh host",
    "python t.py a.password={}",
    "t.py db.secret={} x=1",
    "t.py +hydra.auth.token={}",
    "t.py trainer.logger.api_key={}",
    "t.py --hf_token {}",
    "t.py --hf-token={}",
    "t.py --api-key {}",
    "t.py --wandb_api_key={}",
    "t.py --access-key {}",
    "t.py --aws_secret_access_key={}",
    "t.py --token {} --max-tokens 4096",
    "t.py --auth-token={}",
    "t.py --client-secret {}",
    "t.py --credential {}",
    "t.py --passphrase {}",
    "docker login -u me -p {} registry.example",
    "docker run -e DB_PASSWORD={} image",
    "docker run --env HF_TOKEN={} image",
    "env PGPASSWORD={} psql",
    "export WANDB_API_KEY={} && python t.py",
    "bash -c 'HF_TOKEN={} python t.py'",
    'sh -c "mysql -p {} db"',
    "curl -H 'Authorization: Bearer {}' https://x.example",
    'curl -H "X-Api-Key: {}" https://x.example',
    "curl -b session={} https://x.example",
    "helm --set auth.password={} x",
    "echo {} | docker login --password-stdin",
    "kubectl create secret generic a --from-literal=password={}",
    "psql postgresql://me:{}@db/x -c 'select 1'",
    "huggingface-cli login --token {}",
    "wandb login --relogin --key={} x",
    "smbclient -U me%{} //host/share",
    "curl --user=a:{} https://x.example",
    "curl --proxy-user=a:{} https://x.example",
    "curl -sSu a:{} https://x.example",
    "curl -fsSLu 'a:{}' https://x.example",
    "redis-cli -a {} ping",
    "redis-cli -h cache -p 6379 -a {}",
    "t.py --then 'valkey-cli -a {} ping'",
    "ansible -e ansible_ssh_pass={} all",
    "az login --password {}",
    "--jwt {}",
)
IN_LINES = (
    "INFO using password={} for db",
    "connecting with token: {}",
    "secret: {}",
    "Authorization: Bearer {}",
    "> Authorization: Basic {}",
    "Cookie: session={}; path=/",
    "x-api-key: {}",
    "api_key = {}",
    "apiKey: '{}'",
    "ConfigError: bad key AWS_SECRET_ACCESS_KEY={}",
    '{"password": "{}", "lr": 0.1}',
    "{'hf_token': '{}', 'x': 1}",
    '{"msg": "login", "auth": {"token":"{}"}}',
    '"{\\"password\\": \\"{}\\"}"',
    "Namespace(lr=0.1, db_password='{}')",
    "Server=db;Database=x;Uid=me;Pwd={};",
    "AccountName=a;AccountKey={};EndpointSuffix=x",
    "machine h login me password {}",
    "ALTER ROLE me PASSWORD '{}'",
    "CREATE USER me IDENTIFIED BY '{}'",
    "<password>{}</password>",
    "  password: {}",
    "  - name: HF_TOKEN=v\n    clientSecret: {}",
    'password = "{}"',
    "os.environ['WANDB_API_KEY'] = '{}'",
    "set-cookie: sid={}; HttpOnly",
    "hooks.slack.com/services/T0/B0/{}",
    "smtp_pass={}",
    "MYSQL_PWD={}",
    "db_pw={}",
    "refresh_token={}&grant_type=x",
    "client_secret: {}",
    "SharedAccessKey={}",
    "private_key: {}",
    "session_id={}",
    "password: |\n  {}\nuser: me",
)
HEADED = (
    headed("AK", "IA", length=16, letters=string.ascii_uppercase + string.digits),
    headed("hf", "_", length=34),
    headed("sk", "-", length=48),
    headed("sk-", "proj-", length=60),
    headed("sk-", "ant-", "api03-", length=80),
    headed("gh", "p_"),
    headed("gh", "s_"),
    headed("github", "_pat_", length=60),
    headed("gl", "pat-", length=20),
    headed("xo", "xb-", length=40),
    headed("AI", "za", length=35),
    headed("ya", "29.", length=60),
    headed("np", "m_"),
    headed("py", "pi-", length=80),
    headed("nv", "api-", length=60),
    headed("r8", "_", length=37),
    headed("gs", "k_", length=52),
    headed("hv", "s.", length=90),
    headed("sk", "_live_", length=24),
    headed("dap", "i", length=34, letters="0123456789abcdef"),
    token_of_three,
)

FORMS: tuple[Form, ...] = (
    *(Form(template) for template in (*IN_URLS, *IN_OPTIONS, *IN_LINES)),
    *(
        Form(template, odd)
        for template in ("t.py --password {}", "mysql -p {} db", '{"password": "{}"}', "secret={} x")
    ),
    *(Form(template, base64like) for template in ("AccountKey={}", "t.py --secret {}", "Authorization: Basic {}")),
    *(Form(template, hexadecimal) for template in ("WANDB_API_KEY={}", "t.py --token={}", "https://x/?signature={}")),
    *(Form(f"the line said {{}} at step {number}", value) for number, value in enumerate(HEADED)),
    *(Form(f"t.py --data {{}} --n {number}", value) for number, value in enumerate(HEADED)),
)


def windows(secret: str, width: int = 6) -> Iterator[str]:
    return (secret[at : at + width] for at in range(len(secret) - width + 1))


def left_of(secret: str, text: str) -> list[str]:
    """Pieces of a secret that still stand in a text. A known head is a public word, not a piece of the secret."""
    return [piece for piece in windows(secret) if piece in text]


HARMLESS = (
    "commit 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b",
    "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    "registry.example/train@sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    "uid 123e4567-e89b-12d3-a456-426614174000",
    "GPU-5f3c2b1a-0000-1111-2222-333344445555",
    "00000000:1B:00.0",
    "--learning-rate 3e-4",
    "--lr=5e-05",
    "lr: 2.9999e-05",
    "--num-proc 16",
    "--num_workers=8",
    "-p 8080",
    "-p 8080:80",
    "-p 127.0.0.1:8080:80/tcp",
    "docker run -p 2222:22 image",
    "mkdir -p /work/out",
    "mkdir -p out/checkpoints",
    "--tokenizer gpt2",
    "--tokenizer-path /models/tok",
    "max_tokens=4096",
    "--max-tokens 8192",
    "tokens_per_second: 51234.5",
    "tokens: 1048576",
    "token_count=77",
    "num_tokens = 12,345",
    "eos_token: </s>",
    "pad_token='[PAD]'",
    "bos_token_id: 1",
    "time per token: 12.3ms",
    "{'eos_token': '<|endoftext|>', 'pad_token_id': 0}",
    "--special-token '<|im_start|>'",
    "next token: 42",
    "keys: 12",
    "sort_key=name",
    "--key-bits 8",
    "num_key_value_heads: 8",
    "--kv-cache-dtype fp8",
    "attention passes: 3",
    "forward pass: 0.12 s",
    "pass: 3",
    "compass=north",
    "bypass = true",
    "--pipeline-parallel-size 4",
    "-path ./data",
    "python -m torch.distributed.run",
    "torchrun --nproc-per-node 8 train.py",
    "--rdzv-id 1234",
    "https://huggingface.example/gpt2/resolve/main/config.json?download=true",
    "s3://bucket/prefix/part-0001.parquet",
    "gs://bucket/data@v2",
    "http://host:8080/path@v1",
    "git+https://git.example/repo@main",
    "ssh://git@git.example/x.git",
    "abfss://container@account.dfs.example/path",
    "user@host",
    "oci://registry.example/model:1.0",
    "--author someone",
    "authors: many",
    "autotune=1",
    "signal: 15",
    "design=grid",
    "assign: round-robin",
    "--secret-name db-credentials",
    "secretName: tls",
    "--password-file /run/secrets/db",
    "--token-file=/var/run/token",
    "imagePullSecrets: 2",
    "HF_TOKEN=$HF_TOKEN",
    "password=${DB_PASSWORD}",
    "password: null",
    "token=",
    "auth: none",
    "cookies=3 of 5",
    "docker run -u 1000:1000 image",
    "--user 1000:1000",
    "--user=1000:1000",
    "docker run --user=1000:1000 image",
    "--device -gpu nvidia:0",
    "sort -nu a.txt",
    "git log -a b:c",
    "redis-cli -h cache -p 6379",
    "ps -u root",
    "basic training done",
    "token 12 of 512",
    "bearing=12",
    "saving model checkpoint to out/checkpoint-1000",
    "step 100/1000 loss 2.31 grad_norm 0.5 12.3 it/s",
    "2026-03-01T10:00:00.123456Z rank0: epoch 3",
    "sha1:da39a3ee5e6b4b0d3255bfef95601890afd80709",
    "patience: 5",
    "path=/a/b/c",
    "patch_size=16",
    "otpauth disabled",
    "task-3 risk-averse",
    "sk-learn",
    "--disk-size 100",
    "desk-1",
    "pipeline_tag: text-generation",
    "keyword=train",
    "monkey: 1",
    "session 3 of 5",
    "signed: 12",
    "passed: 12",
)
