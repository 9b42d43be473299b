"""A small stand-in for the KFP API: real HTTP for the real KFP client, everything in memory."""

import json
import re
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlparse


class FakeKfp(BaseHTTPRequestHandler):
    """Keeps pipelines, versions, experiments and runs; enough of v2beta1 for the client's calls."""

    def log_message(self, *_):
        pass

    def do_GET(self):
        path = urlparse(self.path).path
        server = self.server
        if server.refuse:
            self.reply({"error": "not now"}, server.refuse.pop(0))
        elif path.endswith("/healthz"):
            self.reply({"multi_user": server.multi_user})
        elif re.search(r"/pipelines/[^/]+/versions$", path):
            self.reply({"pipeline_versions": server.versions})
        elif re.search(r"/pipelines/[^/]+/versions/[^/]+$", path):
            self.reply({"pipeline_version_id": "v0", "pipeline_spec": server.spec})
        elif path.endswith("/pipelines"):
            self.reply({"pipelines": server.pipelines})
        elif path.endswith("/experiments"):
            self.reply({"experiments": server.experiments})
        elif pod := re.search(r"/apis/v1alpha1/runs/[^/]+/nodes/([^/]+)/log$", path):
            if pod[1] in server.logs:
                self.send(server.logs[pod[1]].encode(), "text/plain", 200)
            else:
                self.reply({"error_message": "no such pod"}, 500)
        elif path.endswith("/runs"):
            server.listed.append(self.path)
            self.reply({"runs": []})
        elif path.endswith("/runs/r1"):
            self.reply(server.states.pop(0) if len(server.states) > 1 else server.states[0])
        else:
            self.reply({"error": f"no such path {path}"}, 404)

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"] or 0))
        path = urlparse(self.path).path
        server = self.server
        server.tokens.append(self.headers.get("Authorization"))
        if path.endswith("/pipelines"):
            server.pipelines.append({"pipeline_id": "p1", **json.loads(body)})
            self.reply(server.pipelines[-1])
        elif path.endswith("/pipelines/upload_version"):
            server.uploads.append(body)
            name = re.search(r"[?&]name=([^&]+)", self.path).group(1)
            server.versions.append(
                {"pipeline_id": "p1", "pipeline_version_id": f"v{len(server.versions)}", "display_name": name}
            )
            self.reply(server.versions[-1])
        elif path.endswith("/experiments"):
            server.experiments.append({"experiment_id": "e1", "display_name": json.loads(body)["display_name"]})
            self.reply(server.experiments[-1])
        elif path.endswith("/runs"):
            server.runs.append(json.loads(body))
            self.reply({"run_id": "r1", **server.runs[-1]})
        else:
            self.reply({"error": f"no such path {path}"}, 404)

    def reply(self, value, status=200):
        self.send(json.dumps(value).encode(), "application/json", status)

    def send(self, data, kind, status):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@contextmanager
def serve_kfp(handler=FakeKfp):
    """The server, with what it was given (`pipelines`, `runs`, ...) and what it will say (`states`, `logs`, ...)."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.pipelines, server.versions, server.experiments, server.runs, server.uploads = [], [], [], [], []
    server.tokens, server.listed = [], []
    server.multi_user = False
    # Answers to `GET runs/r1`, one after the other, the last one for ever; statuses to refuse the next requests with.
    server.states, server.logs, server.spec, server.refuse = [], {}, None, []
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    server.host = f"http://127.0.0.1:{server.server_port}"
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
