"""One connection to a KFP API, and what its failures mean in one line.

The token comes from a file that may be renewed, or from the environment; it never is an argument, which others can see.
"""

import argparse
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from burnish.contracts.errors import BurnishError

if TYPE_CHECKING:
    import kfp

TOKEN_VARIABLE = "KFP_TOKEN"
# KFP's own name for it: a file that the kubelet keeps fresh, in a pod of a multi-user installation.
TOKEN_FILE_VARIABLE = "KF_PIPELINES_SA_TOKEN_PATH"

_HINTS = {
    401: f"; set {TOKEN_VARIABLE} or --token-file to a token that is still good",
    403: "; check --namespace and that you may use KFP there (the chart's rbac.submitters)",
    404: "; check that --host is the address of KFP's API, with its path",
}


def add_kfp_arguments(parser: argparse.ArgumentParser, host_help: str) -> None:
    """Where KFP is and who asks."""
    parser.add_argument("--host", default=os.environ.get("KFP_HOST"), help=host_help)
    parser.add_argument("--namespace", default=None, help="profile namespace of a multi-user KFP")
    parser.add_argument(
        "--token-file",
        default=os.environ.get(TOKEN_FILE_VARIABLE),
        help=f"file with a bearer token, read anew for each request (default: ${TOKEN_FILE_VARIABLE}); "
        f"${TOKEN_VARIABLE}, the token itself, goes before it",
    )


def connect(host: str, namespace: str | None, token_file: str | None) -> "kfp.Client":
    """A client of the API at `host`; a token in $KFP_TOKEN goes before that in `token_file`. Raises what KFP raises."""
    import kfp
    from kfp.client.set_volume_credentials import ServiceAccountTokenVolumeCredentials

    class Client(kfp.Client):
        def get_kfp_healthz(self, sleep_duration: int = 5) -> Any:
            # The original, which the constructor calls, asks five times, five seconds apart, and hides the answer.
            return self.healthzs.healthz_service_get_healthz()

    with warnings.catch_warnings():
        # It warns of servers older than any that takes this pipeline.
        warnings.simplefilter("ignore", FutureWarning)
        return Client(
            host=host,
            namespace=namespace or "kubeflow",
            existing_token=os.environ.get(TOKEN_VARIABLE),
            credentials=ServiceAccountTokenVolumeCredentials(token_file) if token_file else None,
        )


@contextmanager
def explained(host: str) -> Iterator[None]:
    """Turns the client's exceptions into a BurnishError that says where and what to check."""
    from kfp_server_api.exceptions import ApiException
    from urllib3.exceptions import HTTPError

    try:
        yield
    except ApiException as error:
        hint = _HINTS.get(error.status, "")
        raise BurnishError(
            f"KFP at {host} answered {error.status} {error.reason}: {first_line(error.body)}{hint}"
        ) from None
    except (HTTPError, ValueError, OSError) as error:
        raise BurnishError(f"KFP at {host} cannot be used: {first_line(str(error))}; check --host") from None


def first_line(text: str | bytes | None) -> str:
    """At most 300 characters on one line."""
    if isinstance(text, bytes):
        text = text.decode("utf-8", "replace")
    return " ".join((text or "no details").split())[:300]
