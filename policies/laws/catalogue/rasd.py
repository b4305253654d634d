"""What is known of each formal statement of RASD.

The functions here only lead arguments as one types them to the laws.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from policies.laws import rasd, tree
from policies.laws.statement import Statement

Paths = Sequence[Sequence[int]]
_RASD = "tests/policies/test_laws_rasd.py::"
_TREE = "tests/policies/test_laws_tree.py::"


def retrieval_tree(root: int, retrieved: Paths) -> tree.TokenTree:
    """Candidates with common beginnings merged: `tree.merge`."""
    return tree.merge(root, retrieved)


def pruned(retrieved: Paths, draft_law: Sequence[float], top_k: int) -> rasd.Candidates:
    """Candidates that begin with one of the draft's likeliest tokens: `rasd.prune`."""
    return rasd.prune(retrieved, draft_law, top_k)


def verified(
    root: int, retrieved: Paths, target_table: Sequence[Sequence[float]], uniforms: Sequence[float]
) -> tuple[tuple[int, ...], int]:
    """Tokens emitted and how many of them were candidates: `tree.verify_tree` for a Markov target.

    Raises:
        ValueError: A token without a row, or not a coin for each node, root included.
    """
    merged = tree.merge(root, retrieved)
    table = np.asarray(target_table, dtype=np.float64)
    if table.ndim != 2 or not 0 <= min(merged.tokens) <= max(merged.tokens) < len(table):
        raise ValueError(f"target_table needs a row for each token up to {max(merged.tokens)}")
    return tree.verify_tree(merged, [table[token] for token in merged.tokens], uniforms)


STATEMENTS: tuple[Statement, ...] = (
    Statement(
        id="rasd.eq1-3",
        title="The draft continues the text and the target's own first token",
        source="RASD, section 3.1, equations 1 to 3",
        verdict="holds",
        corrected=rasd.draft_input,
        domain="any text, empty too",
        check=_RASD + "test_draft_input",
        example="text=1,2 root=3",
        aliases=("rasd.eq1", "rasd.eq2", "rasd.eq3"),
    ),
    Statement(
        id="rasd.eq4-6",
        title="Autoregressive draft of m tokens and the laws they come from",
        source="RASD, section 3.1, equations 4 to 6",
        verdict="holds",
        corrected=rasd.draft_chain,
        assumptions=("a draft that looks at the last token, which is enough to show the step",),
        domain="a text that ends in the draft's vocabulary; no coins, no tokens",
        check=_RASD + "TestDraftChain::test_exact_law_by_all_coins",
        example="text=1 draft_table=0.25,0.75;0.5,0.5 uniforms=0.1,0.9",
        aliases=("rasd.eq4", "rasd.eq5", "rasd.eq6"),
    ),
    Statement(
        id="rasd.accept",
        title="Acceptance, and the law of the token that replaces a rejected one",
        source="RASD, section 3.1",
        verdict="caveat",
        corrected=rasd.judge,
        printed=rasd.judge_printed,
        assumptions=("the bars of the printed residual mean its normalisation",),
        domain="two laws over one vocabulary; where they are equal nothing is rejected",
        counterexample="p = (.9, .1), q = (.5, .5): max(0, p - q) sums to .4",
        check=_RASD + "test_accepted_and_resampled_make_the_targets_law",
        example="target_law=0.9,0.1 draft_law=0.5,0.5",
    ),
    Statement(
        id="rasd.eq7",
        title="Retrieval by the longest matching suffix",
        source="RASD, section 3.2.1, equation 7 and algorithm 1",
        verdict="wrong",
        corrected=rasd.suffix_candidates,
        printed=rasd.suffix_candidates_printed,
        assumptions=("the last i tokens are compared with i-grams, y_0 among them",),
        domain="1 <= shortest <= longest, span >= 1; shorter candidates at the end of a stored text",
        counterexample="any: as printed i + 1 tokens are compared with i, so that nothing is ever found",
        check=_RASD + "TestSuffixCandidates::test_against_string_search",
        example="text=7,1,2 datastore=1,2,3,4;9,2,5 longest=3 shortest=1 count=4 span=2",
        aliases=("rasd.alg1",),
    ),
    Statement(
        id="rasd.pld_iter",
        title="The draft goes on until retrieval finds something",
        source="RASD, section 3.2.1",
        verdict="caveat",
        corrected=rasd.lookup_rounds,
        assumptions=("a limit on the tokens appended, which the paper does not give",),
        domain="top_k, attempts >= 0; REST is attempts = 0",
        counterexample="a datastore that matches nothing: without a limit the search never ends",
        check=_RASD + "TestLookupRounds::test_candidates_follow_the_draft_and_the_store",
        example="text=0 datastore=1,2,2 draft_table=0.1,0.6,0.3;0.2,0.2,0.6;0.5,0.3,0.2 "
        "top_k=1 attempts=2 longest=3 shortest=1 count=4 span=2",
    ),
    Statement(
        id="rasd.tree",
        title="Candidates with common beginnings make a tree under y_0",
        source="RASD, section 3.2.2",
        verdict="holds",
        corrected=retrieval_tree,
        domain="any candidates; one that begins another is no leaf",
        check=_TREE + "TestTree::test_merged_paths_and_nodes",
        example="root=0 retrieved=1,2;1,4;5",
    ),
    Statement(
        id="rasd.eq8",
        title="The law by which retrieved candidates are pruned",
        source="RASD, section 3.2.2, equation 8",
        verdict="caveat",
        corrected=rasd.first_layer,
        assumptions=("it is the draft's, as the symbol says, and not the target's, as the text does",),
        domain="a text that ends in the draft's vocabulary",
        counterexample="the target's law at this position is not known before verification",
        check=_RASD + "test_pruning",
        example="text=5,1 draft_table=0.2,0.3,0.5;0.3,0.2,0.5;1,0,0",
    ),
    Statement(
        id="rasd.prune",
        title="Candidates whose first token the draft does not have among its best are dropped",
        source="RASD, section 3.2.2",
        verdict="holds",
        corrected=pruned,
        domain="top_k >= 0: none for 0, all for V and more; equally likely tokens by id",
        check=_RASD + "test_pruning",
        example="retrieved=1,2;0,4;2 draft_law=0.3,0.2,0.5 top_k=2",
    ),
    Statement(
        id="rasd.fuse",
        title="The draft's tree and the retrieved one in one, no node twice",
        source="RASD, section 3.2.3",
        verdict="caveat",
        corrected=tree.fuse_paths,
        assumptions=("the draft's siblings were chosen (top-k); drawn twice, they may not be merged",),
        domain="one root",
        counterexample="p = (.1, .5, .4), two draws from q = (.6, .2, .2) merged where alike: not p's law",
        check=_TREE + "TestTree::test_fusion_is_the_union",
        example="root=0 draft_paths=1,2;3 retrieved=1,4;5",
    ),
    Statement(
        id="rasd.verify",
        title="Recursive verification of a tree",
        source="RASD, section 3.2.4 (SpecInfer)",
        verdict="holds",
        corrected=verified,
        assumptions=(
            "the target's law loses a candidate's law after each failure",
            "candidates are chosen, or every draw is a node of its own",
        ),
        domain="a coin for each node, the first for the last token",
        check=_TREE + "TestVerify::test_chosen_candidates_have_exactly_the_targets_law",
        example="root=0 retrieved=1,1;2 target_table=0.25,0.5,0.25;0.5,0.25,0.25;0.25,0.25,0.5 "
        "uniforms=0,0.4,0.9,0.2",
    ),
    Statement(
        id="rasd.metrics",
        title="A speedup of at most the tokens per target step",
        source="RASD, section 4.2",
        verdict="caveat",
        corrected=rasd.metrics,
        assumptions=("a round costs at least a plain step", "tau does not count the target's own token"),
        domain="SR > 0, tau >= 0",
        counterexample="the paper's own table: REST on NL2SQL, SR 3.59 at tau 1.51",
        check=_RASD + "TestMetrics::test_pairs_of_the_paper_that_cannot_be",
        example="speedup=3.59 accepted_per_round=1.51",
    ),
)
