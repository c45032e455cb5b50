"""Writes to a Trackio server, or to a Space that runs one, over its HTTP interface.

``bulk_log`` accepts ids, so that a redelivered entry changes nothing, but no times. It also answers
200 when it has only put the entries into a queue that it may drop (``_flush_loop`` in
trackio/server.py). So each answer is verified by a query for the stored ids.

A stored trace cannot be changed, and the server's own call that renames a run loses the ids by
which a redelivery is recognised.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import cast
from urllib.parse import urljoin

import requests

from otel_bridge.bridge.http_session import HttpSession
from otel_bridge.errors import (
    BlockedError,
    ExporterError,
    PermanentError,
    RetryableError,
)
from otel_bridge.exporter import WriterMemory
from otel_bridge.media_files import file_name
from otel_bridge.otlp.request_size import (
    RequestSize,
    refused_items,
    retry_after_s,
)
from otel_bridge.records import Alert, MediaItem
from otel_bridge.text.secret_patterns import redact_and_cut
from otel_bridge_trackio.encoding import encoded
from otel_bridge_trackio.media import Put, folder_name
from otel_bridge_trackio.payload import Payload, timestamp
from otel_bridge_trackio.settings import Remote
from otel_bridge_trackio.sink import EntrySink, StoreEntry
from otel_bridge_trackio.versions import TrackioAbilities, of_server

REQUEST_ENTRIES = 500
"""Most entries of one request, and fewer after one that timed out (`RequestSize`)."""
REQUEST_BYTES = 4 << 20
"""Most bytes of one request; a larger entry is sent alone."""
_API_VERSION = 1
_UPLOAD = "bulk_upload_media"
_NOT_FINITE = ("NaN", "Infinity", "-Infinity")
_HEADER = "X-Trackio-Write-Token"
_PAGE = 500
"""Most rows that are read back: the first ones are enough to see that rows arrived."""
# Answers of a server, or of a proxy before it, that gave up on a slow request.
_TIMED_OUT = frozenset({408, 502, 504, 524})
# Trackio 0.43 answers a missing token with 400, a Space with 500, and one of these words.
_TOKEN_WORDS = ("write_token", "hf_token", "oauth", "provide write access")
_REFUSED_WORDS = (
    "too large to convert",
    "exceeds 64-bit",
    "surrogates",
    "recursion limit",
)
"""Words in the server's errors about entries that it can never store."""


class RemoteStore(EntrySink):
    """Writes one run of one project to one server.

    Args:
        host: The server.
        project: Trackio project.
        run_id: Id of the run.
        name: Display name of the run.
        memory: Memory that keeps the size of a request.

    Raises:
        RetryableError: The server cannot be reached now.
        BlockedError: The address is not a Trackio server, or the server lacks a needed call or
            refuses access.
    """

    def __init__(
        self,
        host: Remote,
        project: str,
        run_id: str,
        name: str,
        memory: WriterMemory | None = None,
    ) -> None:
        self._server = host
        self._project = project
        self._run_id = run_id
        self._fields: Payload = {"project": project, "run": name, "run_id": run_id}
        self._size = RequestSize(REQUEST_ENTRIES, memory=memory)
        self._session = HttpSession()
        if host.write_token:
            self._session.headers[_HEADER] = host.write_token
        if host.hf_token:
            self._session.headers["Authorization"] = f"Bearer {host.hf_token}"
        self.abilities = self._probe()

    @property
    def url(self) -> str:
        """Return the address of the dashboard."""
        return self._server.url

    def rows(self) -> int:
        """Return how many records the server holds of the run.

        Raises:
            RetryableError: The server cannot be reached now.
            BlockedError: The server refuses access.
        """
        return self._count(f"run_id = {_quoted(self._run_id)}")

    def config(self) -> Payload:
        """Return the run's config as the server holds it, empty when it holds none.

        Raises:
            RetryableError: The server cannot be reached now.
            BlockedError: The server refuses access.
        """
        rows = self._select(
            f"config FROM configs WHERE run_id = {_quoted(self._run_id)}"
        )
        if rows:
            return cast("Payload", json.loads(_text(rows[0]["config"])))
        return {}

    def name_held(self) -> str:
        """Return the name of the run's rows on the server, empty when it has none.

        Raises:
            RetryableError: The server cannot be reached now.
            BlockedError: The server refuses access.
        """
        rows = self._select(
            f"run_name FROM metrics WHERE run_id = {_quoted(self._run_id)} ORDER BY id DESC LIMIT 1"
        )
        # The newest row names the run, as in a local database.
        if rows:
            return str(rows[0]["run_name"])
        return ""

    def numbers(self) -> int:
        """Return how many numbers the first rows of the run hold on the server.

        Raises:
            RetryableError: The server cannot be reached now.
            BlockedError: The server refuses access.
        """
        rows = self._select(
            f"metrics FROM metrics WHERE run_id = {_quoted(self._run_id)} ORDER BY id LIMIT {_PAGE}"
        )
        numbers = 0
        for row in rows:
            stored = cast("dict[str, object]", json.loads(_text(row["metrics"])))
            numbers += sum(map(_is_number, stored.values()))
        return numbers

    def write(
        self, entries: Sequence[StoreEntry], config: Payload | None = None
    ) -> None:
        """Store *entries*, and *config* with the first of them.

        Raises:
            RetryableError: The server is down, slow or busy; the entries before the position are
                stored.
            BlockedError: A person must act.
            PermanentError: One entry can never be stored; the entries before it are stored.
        """
        for batch in self._batches(entries, config):
            refused = refused_items(batch, self._write_batch, PermanentError)
            for (entry, _), exc in refused:
                raise PermanentError(
                    f"{entry.log_id}: {exc}", position=entry.position
                ) from exc

    def alert(self, alerts: Sequence[Alert]) -> bool:
        """Send *alerts*, each stored once by its id; return ``True``: every server has alerts.

        Raises:
            RetryableError: The server is down, slow or busy.
            BlockedError: A person must act.
            PermanentError: The server can never store them as one request.
        """
        entries: list[Payload] = []
        for alert in alerts:
            entries.append({
                **self._fields, "title": alert.title,
                "text": alert.text or None, "level": alert.level, "step": alert.step,
                "timestamp": timestamp(alert.time_unix_ns), "alert_id": f"{self._run_id}:{alert.id}",
            })  # fmt: skip
        self.call("bulk_alert", alerts=entries, hf_token=self._server.hf_token)
        return True

    def media(self) -> Put:
        """Return what uploads the files of media into the server's folder.

        The folder is asked for once, because files are looked up by their whole path. A server that
        names none shows no file, so that each is refused (`_put_file`).

        Raises:
            RetryableError: The server cannot be reached now.
            BlockedError: The server refuses access.
        """
        media_dir = str(_table(self.call("get_settings")).get("media_dir"))
        return lambda item, step: self._put_file(media_dir, item, step)

    def _put_file(self, media_dir: str, item: MediaItem, step: int) -> str:
        """Store a file on the server, which is asked for it before and after.

        Return its path below *media_dir*.

        Raises:
            RetryableError: The server is down, slow or busy.
            BlockedError: The server refuses access.
            PermanentError: The server stored the file under another name, or as `_upload`.
        """
        # The server's own folder of a project: Trackio drops all other characters.
        folder = "".join(
            char for char in self._project if char.isalnum() or char in "-_"
        )
        run_folder = folder_name(str(self._fields["run"]))
        path = f"{folder or 'default'}/{run_folder}/{step}/{file_name(item)}"
        server_path = f"{media_dir}/{path}"
        size = len(item.data)
        # Redelivered, or the same bytes at this step: the name is made of them, so the file is
        # whole.
        if self._file_bytes(server_path) == size:
            return path
        sent: Payload = {
            **self._fields, "run": run_folder, "step": step, "relative_path": None,
            "uploaded_file": self._upload(file_name(item), item.data),
        }  # fmt: skip
        self.call(_UPLOAD, uploads=[sent], hf_token=self._server.hf_token)
        # Asked again, because some versions store the file under a name of their own, which no row
        # shows.
        stored_size = self._file_bytes(server_path)
        if stored_size != size:
            raise PermanentError(
                f"Trackio's server shows {stored_size} bytes of a file of {size} under {path}: its Trackio names files"
                " itself; upgrade Trackio on the server"
            )
        return path

    def _upload(self, name: str, data: bytes) -> Payload:
        """Send a file to the server's folder of uploads; return what names it in a call.

        Raises:
            RetryableError: The server is down, slow or busy.
            BlockedError: The server refuses access.
            PermanentError: A proxy refuses the file as too large.
        """
        # Two calls, as Trackio's client makes them: the file first, then what names it.
        answer = self._answer("POST", "api/upload", None, files={"files": (name, data)})
        paths = _table(answer).get("paths")
        if not isinstance(paths, list) or not paths:
            raise RetryableError(f"{self.url}: api/upload named no file")
        return {
            "path": str(cast("list[object]", paths)[0]),
            "orig_name": name,
            "meta": {"_type": "gradio.FileData"},
        }

    def _file_bytes(self, path: str) -> int | None:
        """Return the size of a file that the server shows, ``None`` when it shows none at *path*.

        Raises:
            RetryableError: The server is down, slow or busy.
            BlockedError: The server refuses access.
        """
        address = urljoin(self.url, "file")
        try:
            # Uncompressed, or the length would not be the file's; "stream", so that its bytes stay
            # there.
            with self._session.get(
                address, params={"path": path}, timeout=self._server.timeout_s, stream=True, allow_redirects=False,
                headers={"Accept-Encoding": "identity"},
            ) as response:  # fmt: skip
                if response.status_code == 404:
                    return None
                if response.status_code != 200:
                    raise self._error(response, None)
                return int(response.headers.get("Content-Length", "-1"))
        except requests.RequestException as exc:
            raise self._unreachable(exc) from exc

    def close(self) -> None:
        """Close the connection."""
        self._session.close()

    def call(self, name: str, **arguments: object) -> object:
        """Call one function of the server's interface and return what it returns.

        Raises:
            RetryableError: The server is down, slow or busy.
            BlockedError: A person must act.
            PermanentError: The function does not accept the arguments.
        """
        return self._post(name, json.dumps({"args": [], "kwargs": arguments}).encode())

    def _batches(
        self, entries: Sequence[StoreEntry], config: Payload | None
    ) -> Iterator[list[tuple[StoreEntry, bytes]]]:
        """Yield *entries* with their JSON in requests within the limits.

        One entry alone may exceed the limit of bytes: it cannot be divided.

        Raises:
            PermanentError: An entry cannot be encoded; those before it were yielded.
        """
        batch: list[tuple[StoreEntry, bytes]] = []
        size = 0
        for index, entry in enumerate(entries):
            fields: Payload = dict(self._fields)
            if config is not None and not index:
                fields["config"] = config
            try:
                data = encoded(entry, fields)
            except PermanentError:
                # First the entries before it, which are stored by that.
                if batch:
                    yield batch
                raise
            if batch and (
                len(batch) >= self._size.now or size + len(data) > REQUEST_BYTES
            ):
                yield batch
                batch = []
                size = 0
            batch.append((entry, data))
            size += len(data)
        if batch:
            yield batch

    def _write_batch(self, pairs: Sequence[tuple[StoreEntry, bytes]]) -> None:
        """Send the entries of *pairs*, and check that the server has stored them.

        Its answer does not show that: it may only have queued them (``_flush_loop`` of its server).

        Raises:
            RetryableError: The server is down, slow or busy; all of them come again.
            BlockedError: A person must act.
            PermanentError: The server refuses the request as a whole.
        """
        # In the body as well as in the header: a Space checks the argument of the call.
        token = json.dumps(self._server.hf_token).encode()
        logs = b",".join([data for _, data in pairs])
        body = b'{"args":[],"kwargs":{"logs":[%b],"hf_token":%b}}' % (logs, token)
        try:
            with self._size.request(len(pairs)):
                self._post("bulk_log", body)
                # Within the same measured request: a batch of which the answer is late counts as
                # too large.
                ids = {entry.log_id for entry, _ in pairs}
                condition = f"log_id IN ({','.join(map(_quoted, ids))})"
                if self._count(condition) < len(ids):
                    raise RetryableError(
                        f"{self.url} answered before it had stored {len(pairs)} entries: its database is busy"
                    )
        except ExporterError as exc:
            # It is unknown which of these entries are stored: all come again, and are recognised by
            # their ids.
            exc.position = pairs[0][0].position
            raise

    def _count(self, condition: str) -> int:
        """Return how many records fulfil *condition*, 0 without a database; raises as `_select`."""
        rows = self._select(f"COUNT(*) AS held FROM metrics WHERE {condition}")
        if rows:
            return int(str(rows[0]["held"]))
        return 0

    def _select(self, columns: str) -> list[dict[str, object]]:
        """Query the project's database; a project without records has none, which means no rows.

        Raises:
            RetryableError: The server cannot be reached now.
            BlockedError: The server refuses access.
        """
        try:
            answer = self.call(
                "query_project", project=self._project, query=f"SELECT {columns}"
            )
        except RetryableError as exc:
            # Trackio creates the database with the first record; before, its call ends in HTTP 500.
            if "not found" in str(exc):
                return []
            raise
        return cast("dict[str, list[dict[str, object]]]", answer)["rows"]

    def _probe(self) -> TrackioAbilities:
        """Return what the server can do, and check that it is one.

        Raises:
            RetryableError: The server cannot be reached now.
            BlockedError: Another program answers, or a Trackio that is too old, or access is
                refused.
        """
        answer = self._answer("GET", "version", None)
        facts = _table(answer)
        version = str(facts.get("version") or "")
        if facts.get("api_version") != _API_VERSION:
            raise BlockedError(
                f"{self.url}: version {version or 'unknown'}, api_version {facts.get('api_version')}; expected a "
                f"server of api_version {_API_VERSION}",
                help="check the address, and upgrade Trackio on the server",
            )
        try:
            # No trace is asked for: a server below 0.25 answers "Unknown API" (404).
            self.call("get_traces", project=self._project, run_id=self._run_id, limit=0)
        except BlockedError as exc:
            if "Unknown API" not in str(exc):
                raise
            raise BlockedError(
                f"{self.url}: its Trackio {version} has no get_traces, so that it cannot show a rollout",
                help="upgrade Trackio on the server: pip install 'trackio>=0.25'",
            ) from exc
        return of_server(version)

    def _post(self, name: str, body: bytes) -> object:
        """Call a function of the server.

        Return its result, ``None`` without one. Raises as `call`.
        """
        return _table(self._answer("POST", f"api/{name}", body)).get("data")

    def _answer(
        self,
        method: str,
        path: str,
        body: bytes | None,
        files: Mapping[str, tuple[str, bytes]] | None = None,
    ) -> object:
        """Make one request and return the JSON of its answer; a query of the server's address is left out.

        Raises:
            ExporterError: There was no answer, or one that `_error` reads: all but 200 with JSON.
        """
        try:
            response = self._session.request(
                method,
                urljoin(self.url, path),
                data=body,
                files=files,
                headers=None if files else {"Content-Type": "application/json"},
                timeout=self._server.timeout_s,
                # requests would repeat a redirected POST as GET, which stores nothing.
                allow_redirects=False,
            )
        except requests.RequestException as exc:
            raise self._unreachable(exc) from exc
        answer = _json(response)
        if response.status_code == 200 and answer is not None:
            return answer
        raise self._error(response, answer)

    def _unreachable(self, exc: requests.RequestException) -> RetryableError:
        """Return the error for a request without an answer.

        After a time-out, requests get smaller.
        """
        reason = redact_and_cut(" ".join(str(exc).split()), 300)
        timed_out = isinstance(exc, requests.Timeout)
        return RetryableError(f"{self.url}: {reason}", timed_out=timed_out)

    def _error(self, response: requests.Response, answer: object) -> ExporterError:
        """Return the error for an answer that is not a success: by its status, or by the words of its text.

        Blocked if a person must act, permanent if an entry is at fault, else retryable.
        """
        status = response.status_code
        fields = _table(answer)
        text = str(fields.get("error") or response.reason or "no JSON")
        message = f"{self.url}: HTTP {status}: {redact_and_cut(text, 300)}"
        # Words before statuses: a missing token is a 400, which would otherwise blame the address.
        if status in {401, 403} or _has_word(text, _TOKEN_WORDS):
            variable = "TRACKIO_WRITE_TOKEN"
            if self._server.space:
                variable = "HF_TOKEN (hf auth login)"
            return BlockedError(
                message,
                help=f"set {variable} where the bridge runs, to a token that may write",
            )
        if status in {400, 404, 405} or 300 <= status < 400:
            return BlockedError(message, help=self._help())
        # Too large for a proxy, or a value that SQLite or JSON cannot hold (HTTP 500): halving
        # finds it.
        if status in {413, 422} or _has_word(text, _REFUSED_WORDS):
            return PermanentError(message)
        # Any other 4xx or 5xx may pass: an entry that was refused wrongly would be lost for good.
        wait_s = retry_after_s(response.headers.get("Retry-After"))
        return RetryableError(
            message, retry_after_s=wait_s, timed_out=status in _TIMED_OUT
        )

    def _help(self) -> str:
        """Return what to do when the address does not answer as a Trackio server."""
        if self._server.space:
            return f"make the Space once: trackio sync --project {self._project} --space-id {self._server.space}"
        return "check TRACKIO_SERVER_URL: no Trackio server of a known version answers there"


def count_remote(
    server: Remote, project: str, run_id: str, name: str
) -> tuple[int, int]:
    """Return how many numbers and traces the server shows of a run.

    Raises:
        RetryableError: The server cannot be reached now.
        BlockedError: The server refuses access.
    """
    store = RemoteStore(server, project, run_id, name)
    try:
        rows = store.numbers()
        traces = cast(
            "list[object]", store.call("get_traces", project=project, run_id=run_id)
        )
    finally:
        store.close()
    return rows, len(traces)


def abilities_at(server: Remote) -> TrackioAbilities:
    """Return what the Trackio of a server can do; writes nothing.

    Raises:
        RetryableError: The server cannot be reached now.
        BlockedError: The address is not a Trackio server, or the server lacks a needed call or
            refuses access.
    """
    # The project need not exist: reading one without records creates nothing.
    store = RemoteStore(server, "otel-bridge-doctor", "none", "none")
    store.close()
    return store.abilities


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) or value in _NOT_FINITE


def _table(answer: object) -> dict[str, object]:
    """Return an answer that is an object; empty for anything else."""
    if isinstance(answer, dict):
        return cast("dict[str, object]", answer)
    return {}


def _has_word(text: str, words: Iterable[str]) -> bool:
    lowered = text.lower()
    return any(word in lowered for word in words)


def _json(response: requests.Response) -> object:
    try:
        return cast("object", response.json())
    except ValueError:
        # A proxy's or the Hub's own page; its status decides.
        return None


def _text(stored: object) -> str:
    """Return a JSON column as text; servers before 0.37 return it in hex.

    Raises `ValueError` for anything else.
    """
    text = str(stored)
    if text.lstrip().startswith("{"):
        return text
    return bytes.fromhex(text).decode()


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
