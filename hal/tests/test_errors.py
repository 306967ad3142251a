"""Every exception crosses processes and copies unchanged, and every failure to open says what to do."""

import copy
import multiprocessing
import pickle
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest
from bitnet_hal import errors
from bitnet_hal.driver.status import OPERATIONS, failure
from bitnet_hal.errors import BackendUnavailableError, BitnetError, GpuError

KINDS = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, BitnetError)]
DETAILS = {
    "backend": "opencl",
    "device": "PoCL",
    "operation": "alloc",
    "code": "CL_X (-5)",
    "hint": "Use less",
    "requested": 64,
    "free": 1,
    "kernel": "argmax",
    "log": "error: no",
}


def made(kind: type[BitnetError]) -> BitnetError:
    error = kind("no room", **DETAILS) if issubclass(kind, GpuError) else kind("no room")
    error.add_note("a note")
    return error


def fail(kind: type[BitnetError]) -> None:
    raise made(kind)


def assert_same(again: BaseException, error: BitnetError) -> None:
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert again.args == error.args
    assert vars(again) == vars(error)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_errors_survive_pickle(kind: type[BitnetError], protocol: int) -> None:
    error = made(kind)
    again = pickle.loads(pickle.dumps(error, protocol))  # noqa: S301 - made here
    assert_same(again, error)


@pytest.mark.parametrize("kind", KINDS)
def test_errors_survive_copies(kind: type[BitnetError]) -> None:
    error = made(kind)
    assert_same(copy.copy(error), error)
    assert_same(copy.deepcopy(error), error)


@pytest.mark.parametrize(
    "method", [name for name in ("spawn", "fork") if name in multiprocessing.get_all_start_methods()]
)
def test_errors_reach_the_parent_of_a_pool(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parents[2])  # a spawned process imports this module by its name
    context = multiprocessing.get_context(method)
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        for kind in KINDS:
            assert_same(pool.submit(fail, kind).exception(timeout=60), made(kind))
    with context.Pool(1) as pool:
        for kind in KINDS:
            with pytest.raises(kind) as caught:
                pool.apply_async(fail, (kind,)).get(60)
            assert_same(caught.value, made(kind))


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_failure_without_advice_of_its_own_gets_some(operation: str) -> None:
    assert failure(OPERATIONS[operation], operation, backend="vulkan", code="VK_ERROR_UNKNOWN (-13)").hint


def test_the_advice_of_a_plugin_is_kept() -> None:
    assert failure(BackendUnavailableError, "open", backend="x", hint="Turn it on").hint == "Turn it on"
