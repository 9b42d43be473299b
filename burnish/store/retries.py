"""How long a request to the object store is repeated, and what people see meanwhile.

Every request of ours may be repeated: writing the same bytes under the same key twice is writing them once.
"""

import logging
import os
import re
from typing import Any, Self

import certifi
import urllib3
from urllib3.util import Retry, Timeout

# Each retried connection would print a line of its own; ours is said once a request.
logging.getLogger("urllib3.connectionpool").setLevel(logging.ERROR)
_LOGGER = logging.getLogger(__name__)
_SAID_AT = 5


class _Announced(Retry):
    """Says once a request that it is waiting, when it has done so for some seconds."""

    def increment(self, *args: Any, **kwargs: Any) -> Self:
        following = super().increment(*args, **kwargs)
        if len(following.history) == _SAID_AT:
            pool, last = kwargs.get("_pool"), following.history[-1]
            reason = f"status {last.status}" if last.status else one_line(last.error)
            where = f"{pool.host}:{pool.port}" if pool else "its address"
            _LOGGER.warning("object store at %s: no answer (%s); asking again for some minutes", where, reason)
        return following


def http_pool(retries: int, read_s: float) -> urllib3.PoolManager:
    """Repeats a request 0, 0.3, 0.6, ... up to 60 s apart with jitter; an answer may be silent for `read_s` seconds."""
    return urllib3.PoolManager(
        timeout=Timeout(connect=5, read=read_s),
        maxsize=32,
        ca_certs=os.environ.get("SSL_CERT_FILE") or certifi.where(),
        retries=_Announced(
            total=retries,
            allowed_methods=None,
            status_forcelist=[429, 500, 502, 503, 504],
            backoff_factor=0.15,
            backoff_jitter=0.2,
            backoff_max=60,
            # A store may ask for hours.
            retry_after_max=60,
            raise_on_status=False,
        ),
    )


def one_line(error: BaseException | None) -> str:
    """The error in short, without the address that urllib3 puts in front and that the caller says already."""
    return re.sub(r"^HTTPS?Connection\(.*?\): ", "", " ".join(str(error).split()))[:200]
