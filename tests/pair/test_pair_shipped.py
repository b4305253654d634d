"""What lies in the repository: the weights, their tokenizer, the prompts and the report."""

from __future__ import annotations

import json
import re

import pytest
import torch

from calibrate.corpus import CATEGORIES, split_of
from calibrate.live.loading import load_model, load_tokenizer
from calibrate.pair.corpus import END, PER_CATEGORY, VOCABULARY, encode
from calibrate.pair.writing import find_loops
from calibrate.prompts import Prompt, load_prompts
from calibrate.shipped import DATA, PROMPTS, resolve_model

BOTH = ("target", "draft")


@pytest.fixture(params=sorted(PROMPTS))
def split(request: pytest.FixtureRequest) -> str:
    """Each split that ships prompts."""
    return str(request.param)


def prompts_of(split: str) -> list[Prompt]:
    """The shipped prompts of ``split``."""
    return load_prompts(PROMPTS[split])


def test_prompts_are_rows_of_spec_bench(split: str) -> None:
    rows = [json.loads(line) for line in PROMPTS[split].read_text(encoding="utf-8").splitlines()]
    assert len({row["question_id"] for row in rows}) == len(rows)
    for row in rows:
        assert set(row) == {"question_id", "category", "turns", "source"}
        assert isinstance(row["question_id"], int)
        assert len(row["turns"]) == 1
        assert row["turns"][0].strip()
    categories = [row["category"] for row in rows]
    assert categories == [c for c in CATEGORIES for _ in range(PER_CATEGORY[split])]


def test_prompts_come_from_documents_that_were_not_trained_on(split: str) -> None:
    assert {split_of(row.source) for row in prompts_of(split)} == {split}


def test_prompts_have_48_to_112_tokens_and_do_not_loop(split: str) -> None:
    tokenizer = load_tokenizer(DATA / "target")
    for row in prompts_of(split):
        tokens = encode(tokenizer, row.text)
        assert 48 <= len(tokens) <= 112
        assert not find_loops(tokens)


def test_the_pair_shares_a_tokenizer() -> None:
    one, other = ((DATA / name / "tokenizer.json").read_bytes() for name in BOTH)
    assert one == other
    tokenizer = load_tokenizer(DATA / "draft")
    assert len(tokenizer) == VOCABULARY
    assert tokenizer.eos_token == END
    assert tokenizer.eos_token_id == 0


def test_any_text_survives_the_tokenizer() -> None:
    tokenizer = load_tokenizer(DATA / "target")
    text = "def f(x):\n\treturn 'à → 😀'  # 0x41\r\n"
    assert tokenizer.decode(encode(tokenizer, text)) == text


def test_the_models_load_and_agree_more_often_than_not_by_chance() -> None:
    target, draft = (load_model(DATA / name) for name in BOTH)
    tokenizer = load_tokenizer(DATA / "target")
    agreed = positions = 0
    for row in prompts_of("heldout")[::8]:
        tokens = torch.tensor([encode(tokenizer, row.text)])
        with torch.inference_mode():
            p, q = target(tokens).logits, draft(tokens).logits
        assert p.shape == q.shape == (1, tokens.shape[1], VOCABULARY)
        agreed += int((p.argmax(-1) == q.argmax(-1)).sum())
        positions += tokens.numel()
    assert agreed / positions > 0.3


def test_the_pair_is_small() -> None:
    assert sum(path.stat().st_size for path in DATA.rglob("*") if path.is_file()) < 20e6


def test_the_report_says_that_the_pair_is_what_it_should_be() -> None:
    report = json.loads((DATA / "report.json").read_text(encoding="utf-8"))
    rows = {row["category"]: row for row in report["categories"]}
    assert list(rows) == [*CATEGORIES, "all"]
    everything = rows["all"]
    assert everything["target_loss"] < everything["draft_loss"]
    assert 0.55 <= everything["greedy_acceptance"] <= 0.85
    assert everything["looping_outputs"] < 0.10


def test_names_of_the_pair_become_folders() -> None:
    assert resolve_model("pair:target") == DATA / "target"
    assert resolve_model("pair:draft") == DATA / "draft"


@pytest.mark.parametrize("name", ["gpt2", "some/folder", "owner/model", "./pair"])
def test_other_names_stay_as_they_are(name: str) -> None:
    assert resolve_model(name) == name


def test_an_unknown_name_of_the_pair_is_an_error() -> None:
    with pytest.raises(ValueError, match=re.escape("pair:target, pair:draft, pair:block, pair:x5, pair:x20")):
        resolve_model("pair:x6")
