"""What `helm test` runs: the sandbox at the address given must be ready, and judge a right and a wrong program."""

import json
import os
import sys
import urllib.request


def ask(url: str, body: object = None) -> dict:
    token = os.environ.get("BURNISH_SANDBOX_TOKEN")
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(url, data, headers), timeout=60) as answer:
        return json.load(answer)


def main(url: str) -> None:
    print("ready:", ask(f"{url}/readyz"))
    for verdict, code in (("passed", "def f(x): return x + 1"), ("wrong", "def f(x): return x")):
        spec = {"entry_point": "f", "tests": [{"args": [1], "expected": 2}]}
        result = ask(f"{url}/v1/run", {"code": code, "spec": spec})["result"]
        print(code, "->", result["verdicts"])
        if result["verdicts"] != [verdict]:
            sys.exit(f"the sandbox says {result['verdicts']} and should say {verdict}: {result['details']}")


main(sys.argv[1])
