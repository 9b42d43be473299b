"""Writing an object only where there is none: what two controllers of one campaign race for."""

from concurrent.futures import ThreadPoolExecutor


def test_of_many_writers_at_once_exactly_one_succeeds(store):
    for attempt in range(5):
        key = f"campaigns/one/{attempt}.json"
        texts = [f"writer {number}".encode() for number in range(12)]
        with ThreadPoolExecutor(12) as pool:
            wrote = list(pool.map(lambda text, key=key: store.backend.put_new(key, text), texts))
        assert wrote.count(True) == 1
        assert store.backend.get_bytes(key) == texts[wrote.index(True)]


def test_a_repeated_write_of_the_same_bytes_has_succeeded(store):
    assert store.backend.put_new("key", b"mine")
    assert store.backend.put_new("key", b"mine"), "a request that is sent again meets its own first attempt"
    assert not store.backend.put_new("key", b"another")
    assert store.backend.get_bytes("key") == b"mine"


def test_nothing_but_the_object_is_left_behind(store):
    store.backend.put_new("folder/key", b"mine")
    store.backend.put_new("folder/key", b"another")
    assert [found.key for found in store.backend.list("folder/")] == ["folder/key"]
