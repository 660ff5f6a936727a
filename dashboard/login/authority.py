"""Who somebody is and what they may list, as an authority says: in a cluster, its API server."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

from kopt.dashboard.data.access import Right


class AuthorityError(Exception):
    """The authority cannot be asked now; the message is for the reader of a page."""


@dataclass(frozen=True)
class User:
    """As the API server names them: a person, or a service account."""

    name: str
    uid: str = ""
    groups: tuple[str, ...] = ()


class Authority(Protocol):
    """Both methods raise AuthorityError. Answers may be as old as a minute."""

    async def user_of(self, token: str) -> User | None:
        """Whose token it is; None for one that is not, or no longer, valid."""
        ...

    async def rights_of(self, user: User, rights: Collection[Right]) -> Collection[Right]:
        """Those of ``rights`` that the user has."""
        ...
