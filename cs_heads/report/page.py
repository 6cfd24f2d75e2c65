"""The report: one HTML file that opens anywhere, of findings at hand or of a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_type_hints

from cs_heads.analysis.atlas_result import Atlas
from cs_heads.analysis.attention import HeadAttention
from cs_heads.analysis.confirm import Confirmation
from cs_heads.analysis.head_cards import HeadCards
from cs_heads.analysis.sparsity import SparsityCurve
from cs_heads.arguments import check_path, check_type, in_line
from cs_heads.plot.style import offscreen
from cs_heads.ranking import HeadRanking
from cs_heads.report.atlas_page import atlas_page
from cs_heads.report.findings import ATLAS, COMPARISON, RESULT, Findings, check_alone
from cs_heads.report.findings_page import findings_page


def write_report(
    findings: HeadRanking | Findings | Atlas | str | Path,
    path: str | Path,
    *,
    proof: Confirmation | None = None,
    curve: SparsityCurve | None = None,
    attention: HeadAttention | None = None,
    cards: HeadCards | None = None,
) -> Path:
    """Write the report of findings: one HTML file that opens anywhere.

    The verdict, the heads and their map come first, then what broke, curves, attention patterns, cost, provenance, and
    the command that makes it again; of an atlas its map, the matrix of losses, a table of skills, universal and shared
    heads, and the tree of skills. The page uses no network, can be printed, follows the reader's dark or light
    setting, and shows the user's own texts as texts.

    Args:
        findings: a ranking, an atlas, or the folder that ``cs-heads find``, ``compare`` or ``atlas`` wrote with
            ``--out``; or ``Findings`` with all that goes into the page.
        path: the file to write; its folder is made where there is none.
        proof: beside a ranking, what ``cs.confirm`` said of it.
        curve: beside a ranking, what ``cs.sparsity_curve`` gave.
        attention: beside a ranking, what ``cs.attention`` gave.
        cards: beside a ranking, what ``cs.explain`` gave.

    Returns:
        The path.

    Raises:
        ValueError: for a folder without results or with broken ones, results of another model or task than the
            ranking's, or results beside what is no ranking.
    """
    path = check_path("path", path)
    if path.is_dir():
        raise ValueError(f"path must be a file, got the folder {str(path)!r}")
    parts = {"proof": proof, "curve": curve, "attention": attention, "cards": cards}
    if isinstance(findings, HeadRanking):
        findings = _findings_of(findings, **parts)
    elif any(part is not None for part in parts.values()):
        raise ValueError(f"proof, curve, attention and cards go beside a ranking, got findings {in_line(findings)}")
    elif isinstance(findings, str | Path):
        folder, atlas = Path(findings), Path(findings) / ATLAS
        if atlas.is_file():
            check_alone(folder, RESULT, COMPARISON)
        findings = Atlas.load(atlas) if atlas.is_file() else Findings.load(folder)
    elif not isinstance(findings, Findings | Atlas):
        raise ValueError(f"findings must be a ranking, an atlas, or the path of a folder, got {in_line(findings)}")
    with offscreen():
        page = atlas_page(findings) if isinstance(findings, Atlas) else findings_page(findings)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page + "\n", encoding="utf-8")
    return path


def _findings_of(ranking: HeadRanking, proof: Any, **beside: Any) -> Findings:
    kinds, k = get_type_hints(Findings), ranking.k
    for name, part in {"proof": proof, **beside}.items():
        check_type(name, part, kinds[name])
    if proof is not None:
        proved = (*proof.heads, *proof.passengers)
        if {*proved} != {*ranking.top(len(proved))}:
            first, others = (", ".join(map(str, heads)) for heads in (ranking.top(len(proved)), proved))
            raise ValueError(f"proof must be of the first heads of the ranking, {first}; it is of {others}")
        ranking, k = ranking.proved(proof.heads), len(proof.heads)
    return Findings(ranking, proof, k=k, **beside)
