"""Storage on disk and in S3, and inputs that are read from there, with a network that fails."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import re
import stat
import threading
import urllib.request
from collections import deque
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from moto.server import ThreadedMotoServer
from obstore import delete
from obstore.store import from_url

from pipeline import Item, Plan, Retry, StageFailed, start
from stages.errors import InputError, OutputFull, StorageError, StorageTaken, StorageUnavailable
from stages.inputs import Choice, Group, ReadSpec, TextSource, scan
from stages.inputs.fingerprint import fingerprints, hashed
from stages.inputs.source import SMALL_BYTES
from stages.storage import Entry, LocalStorage, Location, RemoteStorage, Span, Storages, locate, stream
from tests.contracts.storage import StorageContract, run

BUCKET = "bucket"
QUICK = Retry(on=(StorageUnavailable,), attempts=3, first_s=0.0)


class Proxy(ThreadingHTTPServer):
    """Hands requests on to a server, but for those that `faults` says: "503", "drop" in the middle of the answer,
    "deny", or "slow": that waits until four are."""

    daemon_threads = True

    def __init__(self, port: int) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.target = port
        self.faults: deque[str] = deque()
        self.requests: list[str] = []
        self.slow = threading.Barrier(4)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Proxy

    def log_message(self, *_: object) -> None:
        pass

    def handle_one_request(self) -> None:
        try:
            super().handle_one_request()
        except ConnectionError:
            self.close_connection = True

    def _forward(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.server.requests.append(f"{self.command} {self.path}")
        fault = self.server.faults.popleft() if self.server.faults else ""
        if fault == "slow":
            self.server.slow.wait(timeout=20)
        if fault in ("503", "deny"):
            self.send_response(503 if fault == "503" else 403)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        upstream = http.client.HTTPConnection("127.0.0.1", self.server.target, timeout=20)
        try:
            headers = {name: value for name, value in self.headers.items() if name.lower() != "host"}
            upstream.request(self.command, self.path, body, headers)
            answer = upstream.getresponse()
            data = answer.read()
        finally:
            upstream.close()
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in ("transfer-encoding", "connection", "content-length", "server", "date"):
                self.send_header(name, value)
        length = answer.getheader("Content-Length") if self.command == "HEAD" else str(len(data))
        self.send_header("Content-Length", length or "0")
        self.end_headers()
        if fault == "drop":
            self.wfile.write(data[: len(data) // 2])
            self.close_connection = True
            return
        if self.command != "HEAD":
            self.wfile.write(data)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _forward


@pytest.fixture(scope="module")
def proxy() -> Iterator[Proxy]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    _, port = server.get_host_and_port()
    with Proxy(port) as proxy:
        thread = threading.Thread(target=proxy.serve_forever)
        thread.start()
        yield proxy
        proxy.shutdown()
        thread.join()
    server.stop()


@pytest.fixture(autouse=True)
def _environment(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s3cret")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{proxy.server_port}")
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    endpoint = f"http://127.0.0.1:{proxy.target}"
    for method, path in (("POST", "/moto-api/reset"), ("PUT", f"/{BUCKET}")):
        urllib.request.urlopen(urllib.request.Request(endpoint + path, method=method)).close()
    proxy.faults.clear()
    proxy.requests.clear()


class TestLocalStorage(StorageContract):
    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self._root = tmp_path

    def make_storage(self) -> LocalStorage:
        return LocalStorage(self._root)

    def test_a_write_that_fails_leaves_nothing(self) -> None:
        storage = self.make_storage()
        run(storage.write("a", b"old"))
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
        try:
            with pytest.raises(OutputFull):
                run(storage.write("a", b"x" * 5000))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert run(storage.read("a", [(0, 3)])) == [b"old"]
        assert [path.name for path in self._root.iterdir()] == ["a"]

    def test_what_a_killed_write_left_is_not_listed(self) -> None:
        (self._root / ".draft-00").write_bytes(b"x")
        assert run(self.make_storage().list("")) == []

    @pytest.mark.parametrize("path", ["../x", "a/../../x", "/etc/passwd"])
    def test_nothing_lies_outside_of_it(self, path: str) -> None:
        with pytest.raises(StorageError, match="does not lie below it"):
            run(self.make_storage().read(path, [(0, 1)]))

    def test_a_folder_in_the_way_is_named(self) -> None:
        (self._root / "a").write_bytes(b"x")
        with pytest.raises(StorageError, match="a/b: cannot be written"):
            run(self.make_storage().write("a/b", b"x"))


class TestS3Storage(StorageContract):
    def make_storage(self) -> RemoteStorage:
        return RemoteStorage.open(f"s3://{BUCKET}", QUICK)

    @pytest.mark.parametrize("fault", ["503", "drop"])
    def test_what_passes_is_tried_again(self, proxy: Proxy, fault: str) -> None:
        storage = self.make_storage()
        run(storage.write("a", b"x" * 1000))
        proxy.requests.clear()
        proxy.faults.extend([fault, fault])
        assert run(storage.read("a", [(0, 1000)])) == [b"x" * 1000]
        assert len(proxy.requests) == 3

    @pytest.mark.parametrize("fault", ["503", "drop"])
    def test_what_does_not_pass_is_named_in_the_end(self, proxy: Proxy, fault: str) -> None:
        storage = self.make_storage()
        run(storage.write("a", b"x" * 1000))
        proxy.requests.clear()
        proxy.faults.extend([fault] * 9)
        with pytest.raises(StorageUnavailable, match="s3://bucket/a: ") as error:
            run(storage.read("a", [(0, 1000)]))
        assert error.value.exit_code == 1
        assert "\n" not in str(error.value)
        assert len(proxy.requests) == 3

    def test_what_is_not_allowed_is_not_tried_again(self, proxy: Proxy) -> None:
        storage = self.make_storage()
        proxy.faults.append("deny")
        with pytest.raises(StorageError, match=r"not allowed: .*check the credentials") as error:
            run(storage.read("a", [(0, 1)]))
        assert not isinstance(error.value, StorageUnavailable)
        assert error.value.exit_code == 2
        assert len(proxy.requests) == 1

    def test_a_store_that_is_not_there_is_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
        with pytest.raises(StorageUnavailable, match="s3://bucket/a: "):
            run(self.make_storage().size("a"))

    def test_a_slow_store_is_asked_for_several_ranges_at_once(self, proxy: Proxy) -> None:
        storage = self.make_storage()
        run(storage.write("a", b"x" * 4000))
        proxy.faults.extend(["slow"] * 4)

        async def collect() -> bytes:
            pieces = stream(storage, "a", 0, 4000, piece_bytes=500, range_bytes=1000, window_bytes=4000)
            return b"".join([piece async for piece in pieces])

        proxy.requests.clear()
        assert run(collect()) == b"x" * 4000
        assert len(proxy.requests) == 4

    def test_of_large_objects_one_wins_too(self) -> None:
        storage = self.make_storage()
        run(storage.write("a", b"1" * (12 << 20), replace=False))
        with pytest.raises(StorageTaken):
            run(storage.write("a", b"2" * (12 << 20), replace=False))
        assert run(storage.read("a", [(0, 1), (12582911, 12582912)])) == [b"1", b"1"]
        run(storage.write("a", b"3" * (12 << 20)))
        assert run(storage.read("a", [(0, 1), (12582911, 12582912)])) == [b"3", b"3"]

    def test_no_secret_is_said(self, proxy: Proxy) -> None:
        storage = self.make_storage()
        proxy.faults.extend(["503"] * 9)
        with pytest.raises(StorageUnavailable) as error:
            run(storage.list(""))
        assert "s3cret" not in f"{error.value}{storage!r}{storage.name}"


class Counting:
    """A storage that counts what is asked of it at once."""

    name = "counting"

    def __init__(self, fail_at: int = -1, hang_at: int = -1) -> None:
        self.asked: list[Span] = []
        self.running = self.most = 0
        self._fail_at, self._hang_at = fail_at, hang_at

    async def size(self, path: str) -> int:
        return 1 << 30

    async def read(self, path: str, spans: Sequence[Span]) -> list[bytes]:
        begin, end = spans[0][0], spans[-1][1]
        self.asked.append((begin, end))
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await asyncio.sleep(0)
            if begin == self._hang_at:
                await asyncio.Event().wait()
            if begin == self._fail_at:
                raise StorageUnavailable("busy")
            return [b"x" * (stop - start) for start, stop in spans]
        finally:
            self.running -= 1

    async def list(self, prefix: str) -> list[Entry]:
        return []

    async def write(self, path: str, data: bytes, *, replace: bool = True) -> None:
        raise NotImplementedError


def test_a_stream_reads_ahead_as_far_as_its_window() -> None:
    storage = Counting()

    async def first() -> None:
        pieces = stream(storage, "x", 0, 1000, piece_bytes=10, range_bytes=20, window_bytes=100)
        await anext(pieces)
        assert (
            storage.asked
            == [(0, 20), (20, 40), (40, 60), (60, 80), (80, 100), (100, 120)][: len(storage.asked)]
        )
        assert len(storage.asked) == 5
        await pieces.aclose()

    run(first())
    assert storage.most == 5
    assert storage.running == 0


def test_a_stream_that_is_left_waits_for_nothing() -> None:
    storage = Counting(hang_at=40)

    async def first() -> None:
        pieces = stream(storage, "x", 0, 1000, piece_bytes=20, range_bytes=20, window_bytes=100)
        await anext(pieces)
        async with asyncio.timeout(20):
            await pieces.aclose()

    run(first())
    assert storage.running == 0


def test_a_stream_fails_after_what_came_before() -> None:
    storage = Counting(fail_at=40)
    got: list[bytes] = []

    async def collect() -> None:
        async for piece in stream(storage, "x", 0, 1000, piece_bytes=20, range_bytes=20, window_bytes=100):
            got.append(piece)

    with pytest.raises(StorageUnavailable):
        run(collect())
    assert len(got) == 2
    assert storage.running == 0


@pytest.mark.parametrize(
    ("argument", "location"),
    [
        ("s3://bucket/a/b", Location("s3://bucket", "a/b")),
        ("s3:/bucket/a/b/", Location("s3://bucket", "a/b")),
        ("gs://bucket", Location("gs://bucket", "")),
        ("https://host:80/x", Location("https://host:80", "x")),
        ("folder/s3:/x", None),
        ("s3", None),
        ("/s3://bucket", None),
    ],
)
def test_a_uri_says_where(argument: str, location: Location | None) -> None:
    assert locate(argument) == location
    assert location is None or locate(str(Path(argument))) == location


@pytest.mark.parametrize(
    "argument",
    ["s3://AKIA:s3cret@bucket/x", "https://me:s3cret@host/x", "https://host/x?X-Amz-Signature=s3cret"],
)
def test_credentials_in_a_uri_are_refused_and_not_repeated(argument: str) -> None:
    with pytest.raises(InputError) as error:
        scan([argument])
    assert "credentials" in str(error.value)
    assert "s3cret" not in str(error.value)
    assert re.search("environment|leave it out", str(error.value))


# Inputs


def read(source: TextSource) -> list[Item[Group]]:
    async def collect() -> list[Item[Group]]:
        return [item async for item in source.read(None)]

    return asyncio.run(collect())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Small files, a large one, a table, damage, what is hidden and what is not taken; the same on disk and in S3."""
    from tests.stages.test_inputs_formats import FORMATS, TEXTS

    root = tmp_path / "data"
    (root / "b").mkdir(parents=True)
    (root / ".hidden").mkdir()
    for name in ("x.parquet", "s.arrow", "x.tar", "x.jsonl.gz"):
        (root / "b" / name).write_bytes(FORMATS[name](TEXTS))
    (root / "a.jsonl").write_bytes(
        b"".join(json.dumps({"text": f"{n} " * 90}).encode() + b"\n" for n in range(9000))
    )
    (root / "b" / "broken.jsonl.gz").write_bytes(FORMATS["x.jsonl.gz"](TEXTS)[:-90])
    (root / "b.txt").write_bytes(b"text")
    (root / "b-c.txt").write_bytes(b"\xff")
    (root / "empty.txt").touch()
    (root / ".hidden" / "x.txt").write_bytes(b"hidden")
    (root / "settings.json").write_bytes(b"{}")
    upload(root, "up/data")
    return root


def upload(root: Path, prefix: str) -> None:
    storage = RemoteStorage.open(f"s3://{BUCKET}", QUICK)
    for path in sorted(root.rglob("*")):
        if path.is_file():
            run(storage.write(f"{prefix}/{path.relative_to(root).as_posix()}", path.read_bytes()))


def test_inputs_in_s3_give_what_they_give_on_disk(folder: Path, proxy: Proxy) -> None:
    local, remote = scan([folder]), scan([Path("s3://bucket/up/data")])
    assert [file.label for file in remote.files] == [file.label for file in local.files]
    assert (remote.names, remote.folders) == (local.names, local.folders)
    assert (folder / "a.jsonl").stat().st_size > SMALL_BYTES
    expected = read(TextSource(local, ReadSpec(group_records=50)))
    source = TextSource(remote, ReadSpec(group_records=50))
    assert read(source) == expected
    assert fingerprints(remote, hashed(remote)) == fingerprints(local, hashed(local))
    with start(Plan(source), at=expected[-9].resume) as running:
        assert list(running) == expected[-8:]


def test_patterns_and_single_files_in_s3(folder: Path) -> None:
    def labels(uri: str, choice: Choice | None = None) -> list[str]:
        return [file.label for file in scan([uri], choice).files]

    assert labels("s3://bucket/up/data/b.txt") == ["b.txt"]
    assert labels("s3://bucket/up/data/*.txt") == ["data/b-c.txt", "data/b.txt", "data/empty.txt"]
    assert labels("s3://bucket/up/**/*.gz") == ["up/data/b/broken.jsonl.gz", "up/data/b/x.jsonl.gz"]
    assert labels("s3://bucket/up/data", Choice(globs=("*",), exclude=("b", "*.txt"))) == [
        "data/a.jsonl",
        "data/settings.json",
    ]
    assert labels("s3://bucket/up/data", Choice(globs=("b/*.tar",))) == ["data/b/x.tar"]
    assert scan(["s3://bucket/up/data/*.txt"]).names == ("data/*.txt",)
    for uri, says in (
        ("s3://bucket/up/none", "s3://bucket/up/none: no such object or folder"),
        ("s3://bucket/up/*.pdf", "matches no file"),
        ("s3://nobucket/x", "s3://nobucket/"),
    ):
        with pytest.raises(InputError, match=re.escape(says)):
            scan([uri])


def test_a_saved_data_set_in_s3_is_not_read_with_its_caches(tmp_path: Path) -> None:
    (tmp_path / "state.json").write_text("{}")
    (tmp_path / "cache-1.arrow").touch()
    upload(tmp_path, "saved")
    with pytest.raises(InputError, match=r"saved: holds a saved data set.*data-\*\.arrow"):
        scan(["s3://bucket/saved"])


def test_a_plan_goes_on_where_the_store_failed(folder: Path, proxy: Proxy) -> None:
    inputs = scan(["s3://bucket/up/data"])
    expected = read(TextSource(inputs, ReadSpec(group_records=50)))
    once = Retry(on=(StorageUnavailable,), attempts=2, first_s=0.0)

    class Failing(Storages):
        def at(self, root: str) -> RemoteStorage:
            return RemoteStorage.open(root, once)

    source = TextSource(inputs, ReadSpec(group_records=50), Failing())
    proxy.faults.extend(["503", "503", "drop", "drop"])
    with start(Plan(source, retry=QUICK)) as running:
        assert list(running) == expected
    proxy.faults.extend(["503"] * 1000)
    with pytest.raises(StageFailed) as error, start(Plan(source)) as running:
        list(running)
    assert isinstance(error.value.__cause__, StorageUnavailable)
    proxy.faults.clear()


def test_an_object_that_vanishes_is_named(folder: Path) -> None:
    inputs = scan(["s3://bucket/up/data/b.txt"])
    delete(from_url(f"s3://{BUCKET}"), "up/data/b.txt")
    with pytest.raises(
        InputError, match=r"b\.txt: cannot be read: s3://bucket/up/data/b\.txt: no such object"
    ):
        read(TextSource(inputs, ReadSpec()))


def test_a_table_that_was_brought_is_gone_afterwards(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    brought = tmp_path / "brought"
    brought.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(brought))
    source = TextSource(scan(["s3://bucket/up/data/b/x.parquet"]), ReadSpec(group_records=9))

    async def leave() -> None:
        groups = source.read(None)
        await anext(groups)
        (copy,) = brought.iterdir()
        assert stat.S_IMODE(copy.stat().st_mode) == 0o600
        await groups.aclose()  # type: ignore[attr-defined]  # it is an async generator

    asyncio.run(leave())
    assert list(brought.iterdir()) == []
