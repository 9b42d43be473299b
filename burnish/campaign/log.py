"""The campaign's state in the object store: each change is an object of its own, numbered, written only if it is new.

So a reader sees a whole state, a crash loses nothing that was written, and of two controllers one finds out that it is
not alone before it does anything.
"""

from typing import Any

from burnish.contracts.campaign import Campaign
from burnish.contracts.errors import BurnishError
from burnish.store import ArtifactStore
from burnish.store.artifacts import run_prefix

# Older ones are of no use, but a controller that fell behind must not find its next number free.
_KEPT = 4


class TakenOver(BurnishError):
    """Another controller has written the state since this one did."""


class CampaignLog:
    """The states of one campaign, as one controller reads and writes them."""

    def __init__(self, store: ArtifactStore, campaign_id: str, controller: str) -> None:
        """controller: a name that no other process has."""
        self.campaign_id = campaign_id
        self.controller = controller
        self._backend = store.backend
        self._prefix = f"{campaign_prefix(campaign_id)}states/"

    def latest(self) -> Campaign:
        """The newest state; an empty one before the first."""
        keys = self._keys()
        if not keys:
            return Campaign(campaign_id=self.campaign_id)
        return Campaign.from_json(self._backend.get_bytes(keys[-1]), keys[-1])

    def write(self, campaign: Campaign, **changes: Any) -> Campaign:
        """`campaign`, which must be the newest state, with `changes`, as the next one. Raises TakenOver."""
        following = campaign.model_copy(
            update={**changes, "revision": campaign.revision + 1, "controller": self.controller}
        )
        key = f"{self._prefix}{following.revision:08d}.json"
        if not self._backend.put_new(key, following.model_dump_json().encode()) or self._keys()[-1] != key:
            raise TakenOver(
                f"campaign {self.campaign_id}: another controller goes on with it; see burnish campaign --status"
            )
        self._backend.delete(self._keys()[:-_KEPT])
        return following

    def _keys(self) -> list[str]:
        return sorted(found.key for found in self._backend.list(self._prefix))


def campaign_prefix(campaign_id: str) -> str:
    """Where the objects of a campaign lie."""
    return run_prefix(campaign_id).replace("runs/", "campaigns/", 1)


def campaign_ids(store: ArtifactStore) -> list[str]:
    """Every campaign in the store, sorted."""
    return sorted({found.key.split("/")[1] for found in store.backend.list("campaigns/")})
