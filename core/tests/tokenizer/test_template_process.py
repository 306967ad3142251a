"""The process of a chat template: limited in time and memory, closed to everything that templates do not need, and
fast."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import psutil
import pytest
from bitnet_core.errors import TokenizerError
from bitnet_core.tokenizer import template_process
from bitnet_core.tokenizer.template_process import TemplateProcess
from bitnet_hal.errors import UsageError

LONG = "{% set a = range(99999) | join('x') %}"
TURNS = LONG + "{% for i in range(100000) %}{% if %s %}{% endif %}{% endfor %}"


@pytest.mark.parametrize(
    "source",
    [
        "{{ (1).to_bytes(4 * 10 * 100000000, 'big') | length }}",
        LONG + "{{ range(99999) | join(a) | length }}",
        LONG + "{{ a.translate({120: a}) | length }}",
        LONG + "{{ a.encode().replace(b, a.encode()) }}",
        LONG + "{% set b = a ~ a ~ a ~ a ~ a ~ a ~ a ~ a ~ a ~ a ~ a ~ a ~ a ~ a ~ a ~ a ~ a ~ a %}"
        "{% set n = namespace(l=[]) %}{% for i in range(1000) %}{% set n.l = n.l + [b[i:]] %}{% endfor %}"
        "{{ n.l | count }}",
        TURNS.replace("%s", "'yy' in a"),
        TURNS.replace("%s", "(a ~ a ~ a)[1:] == 'b'"),
        TURNS.replace("%s", "a ~ 'x' == a ~ 'y'"),
        "{% set n = namespace(x=9) %}{% for i in range(99) %}{% set n.x = n.x + n.x // 1 %}{% endfor %}"
        "{% for i in range(99999) %}{% for j in range(99999) %}{% set n.x = n.x // 3 %}{% endfor %}{% endfor %}",
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% for i in range(99999) %}{{ i | tojson(indent=8) }}" + "{{ 'x' * 9 }}{% endfor %}",
    ],
)
def test_a_template_stays_within_time_and_memory(source: str) -> None:
    template = TemplateProcess(source)
    started, before = time.monotonic(), psutil.Process().memory_info().rss
    with pytest.raises(TokenizerError, match="chat template of the model"):
        template.render({"messages": []})
    assert time.monotonic() - started < template_process.SECONDS + 3
    assert psutil.Process().memory_info().rss - before < 32 << 20


@pytest.mark.parametrize("source", ["{{a}}" * 50_000, "{{ 9" + "|abs" * 60_000 + "}}", "{{" + "(" * 5000])
def test_parsing_is_bounded_too(source: str) -> None:
    started = time.monotonic()
    with pytest.raises(TokenizerError, match="chat template of the model"):
        TemplateProcess(source).parse()
    assert time.monotonic() - started < template_process.SECONDS + 3


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ self._TemplateReference__context }}{{ 1 / 0 }}",
        "{{ cycler.__init__.__globals__ }}",
        "{{ namespace.__init__.__globals__ }}",
        "{{ range.__class__ }}{{ ''.format }}{{ ''.zfill(3) }}",
        "{{ 'x'.encode() }}",
        "{{ 'a'.center(9) }}",
        "{{ lipsum() }}",
        "{{ 'a' | pprint }}",
        "{% include '/etc/passwd' %}",
        "{% import 'os' as os %}",
    ],
)
def test_what_templates_do_not_need_is_not_there(source: str) -> None:
    with pytest.raises(TokenizerError, match="chat template of the model"):
        TemplateProcess(source).render({})


def test_a_process_that_takes_too_much_memory_is_ended_where_the_system_does_not_bound_it() -> None:
    hungry = "import time\nkept = []\nwhile True:\n    kept.append(bytearray(1 << 22)); time.sleep(0.002)"
    with subprocess.Popen([sys.executable, "-c", hungry], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        with template_process._watched(process, 60) as broken:
            assert process.wait() != 0
        assert "MiB of memory" in broken[0]


QWEN = (
    "{%- if tools %}{{- '<tools>' }}{%- for tool in tools %}{{- tool | tojson }}{%- endfor %}{{- '</tools>\\n' }}"
    "{%- endif %}{%- set ns = namespace(last=messages|length - 1) %}"
    "{%- for message in messages[::-1] %}{%- set index = (messages|length - 1) - loop.index0 %}"
    "{%- if message.role == 'user' and message.content is string and not message.content.startswith('<r>') %}"
    "{%- set ns.last = index %}{%- endif %}{%- endfor %}"
    "{%- for message in messages %}{%- set content = message.content %}"
    "{%- if '</think>' in content %}{%- set content = content.split('</think>')[-1].lstrip('\\n') %}{%- endif %}"
    "{{- '<|' + message.role + '|>' + content | trim }}{%- endfor %}"
    "{%- if enable_thinking is defined and enable_thinking is false %}{{- '<think></think>' }}{%- endif %}"
)


def test_variables_reach_the_template_as_json() -> None:
    template = TemplateProcess(QWEN)
    talk = [{"role": "user", "content": "ä\ud800 "}, {"role": "assistant", "content": "x</think>\nyes"}]
    given = {"messages": talk, "enable_thinking": False, "tools": [{"name": "f", "n": 1.5}]}
    assert template.render(given) == (
        '<tools>{"name": "f", "n": 1.5}</tools>\n<|user|>ä\ud800<|assistant|>yes<think></think>'
    )
    with pytest.raises(UsageError, match="cannot take"):
        template.render({"messages": [object()]})
    with pytest.raises(UsageError, match="longer than"):
        template.render({"messages": "x" * (template_process._LONGEST_LINE + 1)})


def test_the_process_is_kept_and_used_by_several_threads_and_ends_with_its_owner() -> None:
    template = TemplateProcess("{{ messages }}")
    assert template.render({"messages": 1}) == "1"
    child = template._process
    assert child is not None
    with ThreadPoolExecutor(8) as threads:
        texts = threads.map(template.render, [{"messages": number} for number in range(100)])
        assert list(texts) == [str(number) for number in range(100)]
    assert template._process is child
    template.close()
    assert not psutil.pid_exists(child.pid)
    assert template.render({"messages": 2}) == "2"
    second = template._process
    assert second is not None
    second.kill()  # whoever ended it, the next rendering has another one
    second.wait()
    assert template.render({"messages": 3}) == "3"
    third = template._process
    assert third is not None
    del template
    assert not psutil.pid_exists(third.pid)


@pytest.mark.skipif(os.name == "nt", reason="the limits are POSIX ones")
def test_the_process_opens_nothing_and_knows_no_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "secret")
    template = TemplateProcess("x")
    template.parse()
    assert template._process is not None
    child = psutil.Process(template._process.pid)
    assert "HF_TOKEN" not in child.environ()
    if sys.platform == "linux":
        assert child.rlimit(psutil.RLIMIT_NOFILE)[0] == 3
        assert child.rlimit(psutil.RLIMIT_AS)[0] < 1 << 30


def test_a_turn_costs_little() -> None:
    template = TemplateProcess(QWEN)
    talk = {"messages": [{"role": "user", "content": "hello " * 50}] * 20}
    template.render(talk)
    seconds = []
    for _ in range(20):
        started = time.perf_counter()
        template.render(talk)
        seconds.append(time.perf_counter() - started)
    assert min(seconds) < 0.02


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("a{% generation %}b{{ x }}{% endgeneration %}c", "ab1c"),
        ("{{ 'a\nb' | indent(2) }}", "a\n  b"),
        ("{{ 'a\nb' | indent('>>', true) }}", ">>a\n>>b"),
        ("{{ [1, 2, 3] | sum }}{{ 'a b' | wordcount }}", "62"),
        ("{% for row in [1, 2, 3] | batch(2) %}{{ row }}{% endfor %}", "[1, 2][3]"),
        ("{% for row in [1, 2, 3] | slice(2) %}{{ row }}{% endfor %}", "[1, 2][3]"),
        ("{% for g in [{'a': 1}, {'a': 1}] | groupby('a') %}{{ g.list | length }}{% endfor %}", "2"),
    ],
)
def test_tags_and_filters_that_transformers_has(source: str, expected: str) -> None:
    with closing(TemplateProcess(source)) as process:
        assert process.render({"x": 1}) == expected


@pytest.mark.parametrize(
    "source",
    [
        "{{ 'a\nb' | indent(10000000) }}",
        "{{ 'a\nb' | indent('x' ~ 'y' | replace('y', 'y' ~ y)) }}",
        "{{ [1] | batch(100000000, 0) | list }}",
        "{{ [1] | slice(slices=100000000) | list }}",
        "{{ x | attr('__class__') }}",
    ],
)
def test_filters_are_bounded(source: str) -> None:
    with closing(TemplateProcess(source)) as process, pytest.raises(TokenizerError, match=r"fails|parse"):
        process.render({"x": 1, "y": "y" * 1000})
