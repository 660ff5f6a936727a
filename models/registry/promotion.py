"""Signs and checks what decides who answers: the gate's verdicts and the promotions of one home.

Writing needs the home's private key, checking only public ones.
"""

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from kopt.core.settings import Settings
from kopt.core.signing_keys import PRIVATE_KEY_FILE, SigningError, public_keys, signing_key
from kopt.models.registry.mlflow import RegistryError
from kopt.models.registry.promotion_seals import (
    CANARY_TAG,
    DECISION_TAG,
    SEAL_TAG,
    CanaryShare,
    GateDecision,
    Newest,
    Seal,
    SealMemory,
    read_canary,
    read_decision,
    read_seal,
    signed_canary,
    signed_decision,
    signed_seal,
)

_LOG = logging.getLogger(__name__)
Tags = Mapping[str, str]


class UnsealedError(RegistryError):
    """A version whose promotion is not proved: it must not answer, whatever alias points to it."""


class Promotions:
    """The seals of one home's models. ``clock`` gives Unix time in seconds."""

    def __init__(self, settings: Settings, *, clock: Callable[[], float] = time.time) -> None:
        self._keys, self._clock = settings.keys, clock
        self._memory = SealMemory(settings.home)

    def decision_tags(self, name: str, digest: str, gate: str, against: str) -> dict[str, str]:
        """The tag that proves the gate's decision on a model."""
        decision = GateDecision(name, digest, gate, against, round(self._clock() * 1e6))
        return {DECISION_TAG: signed_decision(decision, self._key())}

    def decision(self, name: str, digest: str, tags: Tags) -> GateDecision | None:
        """The signed decision on a model, or None. Raises RegistryError for an invalid one."""
        if DECISION_TAG not in tags:
            return None
        try:
            return read_decision(tags[DECISION_TAG], name, digest, public_keys(self._keys))
        except SigningError as error:
            raise RegistryError(f"the gate's verdict on {name} {digest[:12]} is not to be trusted: {error}") from error

    def seal(
        self, name: str, digest: str, ground: str, reason: str, all_tags: Iterable[Tags]
    ) -> tuple[Seal, dict[str, str]]:
        """A new seal, newer than any in ``all_tags`` (tags of the model's versions) and any seen here, and its tag."""
        numbers = [self._memory_of(name).number, *self._numbers(name, all_tags)]
        seal = Seal(name, digest, ground, reason, max(round(self._clock() * 1e6), max(numbers) + 1))
        return seal, {SEAL_TAG: signed_seal(seal, self._key())}

    def accept(self, seal: Seal) -> None:
        """From now on this home refuses older seals of the model."""
        try:
            self._memory.accept(seal)
        except (SigningError, OSError) as error:
            raise UnsealedError(f"{seal.name}: {error}") from error

    def sealed(self, name: str, digest: str, tags: Tags) -> bool:
        """Whether the version may answer; remembers nothing."""
        return max(self._numbers(name, [{**tags, "digest": digest}]), default=0) >= max(1, self._memory_of(name).number)

    def was_promoted(self, name: str, digest: str, tags: Tags) -> bool:
        """Whether the version carries a seal of any age that a trusted key has signed."""
        return any(self._numbers(name, [{**tags, "digest": digest}]))

    def canary_tags(self, name: str, digest: str, against: str, percent: int) -> dict[str, str]:
        """The tag that lets a challenger answer a share of the questions; older ones count no more here."""
        number = max(round(self._clock() * 1e6), self._memory_of(_canary_of(name)).number + 1)
        tag = {CANARY_TAG: signed_canary(CanaryShare(name, digest, against, percent, number), self._key())}
        self.accept(Seal(_canary_of(name), digest, "", "", number))
        return tag

    def canary_percent(self, name: str, digest: str, against: str, tags: Tags) -> int:
        """The share that a challenger may answer beside a champion; 0 where nothing that counts allows any."""
        if CANARY_TAG not in tags:
            return 0
        try:
            canary = read_canary(tags[CANARY_TAG], name, digest, public_keys(self._keys))
            self._memory.accept(Seal(_canary_of(name), digest, "", "", canary.number))
        except (SigningError, OSError) as error:
            _LOG.warning("the challenger of %s answers nobody: %s", name, error)
            return 0
        return canary.percent if canary.against == against else 0

    def admit(self, name: str, version: str, digest: str, tags: Tags, shipped: Collection[str]) -> None:
        """Raises UnsealedError unless the version was promoted as signed, and nothing was promoted since.

        A ``shipped`` digest needs no seal where no promotion was ever seen.
        """
        newest, where = self._memory_of(name), f"{name} version {version}"
        try:
            self._memory.accept(read_seal(tags.get(SEAL_TAG, ""), name, digest, public_keys(self._keys)))
        except (SigningError, OSError) as error:
            if newest.digest == digest or (not newest.number and digest in shipped):
                return
            raise UnsealedError(_refusal(where, name, version, SEAL_TAG in tags, error)) from error

    def last(self, name: str) -> str:
        """The digest of the newest promotion that this home has seen, or an empty text."""
        return self._memory_of(name).digest

    def _memory_of(self, name: str) -> Newest:
        try:
            return self._memory.newest(name)
        except SigningError as error:
            raise UnsealedError(f"{name}: {error}") from error

    def _numbers(self, name: str, all_tags: Iterable[Tags]) -> Iterable[int]:
        trusted = public_keys(self._keys)
        for tags in all_tags:
            try:
                yield read_seal(tags.get(SEAL_TAG, ""), name, tags.get("digest", ""), trusted).number
            except SigningError:
                continue

    def _key(self) -> Ed25519PrivateKey:
        if public_keys(self._keys) and not (self._keys / PRIVATE_KEY_FILE).exists():
            raise RegistryError(
                f"{self._keys} holds no {PRIVATE_KEY_FILE}, and promotions are signed: run this where "
                "models are trained"
            )
        try:
            return signing_key(self._keys)
        except SigningError as error:
            raise RegistryError(f"promotions are signed: {error}") from error


def _canary_of(name: str) -> str:
    """Under which name the newest share of a model's challengers is remembered."""
    return f"{name}/canary"


def _refusal(where: str, name: str, version: str, present: bool, error: Exception) -> str:
    what = (
        f"its promotion seal does not hold ({error})"
        if present
        else (
            "it carries no promotion seal: its alias was moved in the registry, or it was promoted before there were "
            "seals"
        )
    )
    return f"{where}: {what}. If it shall answer: kopt models promote {version} -p {name} --force --reason '…'"
