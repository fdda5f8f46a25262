"""The engine against a second, naive one, and the laws that hold in every scenario.

The naive one lives in `naive_avalon` and shares no table with the package.
"""

from __future__ import annotations

import random
import time
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from naive_avalon import CAST, EVIL, SIZES, Naive, counts

from interp.errors import SourceError
from interp.sources.avalon.claims import card_of, faction, holds, knows, open_view, possible, role
from interp.sources.avalon.rules import LINEUPS, fail_range, protocol_card
from interp.sources.avalon.scenario import (
    Lady,
    Proposal,
    Quest,
    Scenario,
    scenario_from_json,
    scenario_to_json,
)
from interp.sources.avalon.worlds import assignment_table

NAMES = ["Ann", "Bob", "Cid", "Dot", "Eve", "Fay", "Gus", "Hal", "Ida", "Jim"]


def naive_of(scenario: Scenario) -> Naive:
    return Naive(scenario_to_json(scenario))


# ---- random scenarios and claims --------------------------------------------------------------


def random_scenario(rng: random.Random, lineup: str) -> Scenario:
    cast = CAST[lineup][:]
    rng.shuffle(cast)
    names = rng.sample(NAMES, len(cast))
    side = dict(zip(names, (r in EVIL for r in cast), strict=True))
    protocol = rng.random() < 0.4
    history = []
    for quest in range(1, rng.randint(1, 5) + 1):
        team = rng.sample(names, SIZES[lineup][quest - 1])
        roles = [cast[names.index(name)] for name in team]
        allowed = range(sum(r in EVIL for r in roles) + 1)
        if protocol and quest != 4:
            allowed = sorted(counts(lineup, roles) & set(allowed))
        history.append(Proposal(quest, rng.choice(names), tuple(team), tuple(rng.sample(names, 2))))
        history.append(Quest(quest, tuple(team), rng.choice(list(allowed))))
        if quest > 1 and rng.random() < 0.6:
            holder, target = rng.sample(names, 2)
            truth = "EVIL" if side[target] else "GOOD"
            claim = rng.choice(["GOOD", "EVIL"]) if side[holder] else truth
            history.append(Lady(quest, holder, target, claim))
    return Scenario(lineup, tuple(names), tuple(cast), tuple(history), protocol=protocol)


def random_claim(rng: random.Random, scenario: Scenario, depth: int):
    ladies = [k for k, event in enumerate(scenario.history) if isinstance(event, Lady)]
    name = rng.choice(scenario.players)
    draw = rng.random()
    if depth and draw < 0.75:
        knower = None if rng.random() < 0.05 else rng.choice(scenario.players)
        inner = random_claim(rng, scenario, depth - 1)
        claim = {"op": rng.choice(["knows", "possible"]), "seat": knower, "of": inner}
        # What happens at an event cannot be asked about before it.
        if rng.random() < 0.1 and "'event'" not in str(inner):
            return {"op": "at", "event": rng.randint(0, len(scenario.history)), "of": claim}
        if ladies and rng.random() < 0.1:
            event, said = rng.choice(ladies), rng.choice(["GOOD", "EVIL"])
            return {"op": "announce", "event": event, "claim": said, "of": claim}
        return claim
    if draw < 0.8:
        return {"op": "not", "of": random_claim(rng, scenario, depth)}
    if draw < 0.88:
        parts = [random_claim(rng, scenario, 0) for _ in range(2)]
        return {"op": rng.choice(["and", "or"]), "of": parts}
    if ladies and draw < 0.91:
        return {"op": "lied", "event": rng.choice(ladies)}
    if draw < 0.96:
        return faction(name, rng.choice(["GOOD", "EVIL"]))
    return role(name, rng.choice(sorted(set(CAST[scenario.lineup]))))


@pytest.mark.parametrize(
    ("lineup", "n_scenarios", "n_claims", "depth"),
    [("A", 100, 35, 2), ("B", 28, 50, 1), ("C", 4, 25, 1)],
)
def test_a_naive_engine_agrees(lineup: str, n_scenarios: int, n_claims: int, depth: int) -> None:
    rng = random.Random(lineup)
    said = []
    for _ in range(n_scenarios):
        scenario = random_scenario(rng, lineup)
        view, naive = open_view(scenario), naive_of(scenario)
        assert len(view.rows) == len(naive.worlds)
        for number in range(n_claims):
            claim = random_claim(rng, scenario, depth if number % 6 == 0 else min(depth, 1))
            expected = naive.true(claim, scenario.roles)
            assert holds(claim, view) is expected, (scenario, claim)
            said.append(expected)
    # A comparison of constants would prove nothing.
    assert 0.2 < sum(said) / len(said) < 0.8


def test_nested_knowledge_agrees_in_the_largest_lineup() -> None:
    rng = random.Random("nested")
    scenario = random_scenario(rng, "C")
    view, naive = open_view(scenario), naive_of(scenario)
    for _ in range(10):
        knower, other, about = rng.sample(scenario.players, 3)
        claim = knows(knower, possible(other, faction(about, "EVIL")))
        assert holds(claim, view) is naive.true(claim, scenario.roles)


def test_the_naive_engine_would_find_a_wrong_table() -> None:
    scenario = Scenario("A", tuple(NAMES[:7]), tuple(CAST["A"]))
    assert naive_of(scenario).true(knows("Ann", faction("Eve", "EVIL")), scenario.roles)
    assert not naive_of(scenario).true(knows("Ann", faction("Gus", "EVIL")), scenario.roles)


# ---- tables -----------------------------------------------------------------------------------


def test_lineups_have_the_published_casts_and_quests() -> None:
    for name, lineup in LINEUPS.items():
        assert sorted(lineup.roles) == sorted(CAST[name])
        assert lineup.quest_sizes == SIZES[name]
        assert lineup.fails_needed == (1, 1, 1, 2, 1)
    assert {name: len(assignment_table(name).roles) for name in LINEUPS} == {
        "A": 2520,
        "B": 6720,
        "C": 151200,
    }


@pytest.mark.parametrize("lineup", ["A", "B", "C"])
def test_everyone_knows_at_dawn_what_the_visibility_table_says(lineup: str) -> None:
    cast = CAST[lineup]
    scenario = Scenario(lineup, tuple(NAMES[: len(cast)]), tuple(cast))
    view = open_view(scenario)
    for me, own in zip(scenario.players, cast, strict=True):
        for you, theirs in zip(scenario.players, cast, strict=True):
            if me == you:
                continue
            sees_evil = theirs in EVIL and (
                (own == "Merlin" and theirs != "Mordred")
                or (own in EVIL and "Oberon" not in (own, theirs))
            )
            assert holds(knows(me, faction(you, "EVIL")), view) is sees_evil, (own, theirs)
            # Nobody is told a role, except by elimination where only one is left.
            told = own in ("Assassin", "Morgana") and lineup == "B" and sees_evil
            assert holds(knows(me, role(you, theirs)), view) is told, (own, theirs)
    pair = [scenario.players[cast.index(r)] for r in ("Merlin", "Morgana")]
    percival = scenario.players[1]
    for one, other in (pair, pair[::-1]):
        claim = {
            "op": "or",
            "of": [
                {"op": "and", "of": [role(one, a), role(other, b)]}
                for a, b in (("Merlin", "Morgana"), ("Morgana", "Merlin"))
            ],
        }
        assert holds(knows(percival, claim), view)
        assert holds(possible(percival, role(one, "Morgana")), view)
    outsiders = [name for name in scenario.players if name not in (*pair, percival)]
    for name in outsiders:
        assert not holds(possible(percival, role(name, "Merlin")), view)


def test_the_lady_shows_a_faction_and_no_role() -> None:
    names = tuple(NAMES[:7])
    said = Lady(2, "Cid", "Eve", "EVIL")
    view = open_view(Scenario("A", names, tuple(CAST["A"]), (said,)))
    assert holds(knows("Cid", faction("Eve", "EVIL")), view)
    assert not holds(knows("Cid", role("Eve", "Assassin")), view)
    # A hearer learns only that holder and target are not both as the claim denies.
    assert not holds(knows("Dot", faction("Eve", "EVIL")), view)
    either = {"op": "or", "of": [faction("Cid", "EVIL"), faction("Eve", "EVIL")]}
    assert holds(knows("Dot", either), view)
    assert not holds({"op": "at", "event": 0, "of": knows("Dot", either)}, view)


def test_an_examined_assassin_finds_the_lying_oberon() -> None:
    # Lineup B: Bob is the Assassin and saw Ann only; Cid examines Bob and calls him GOOD.
    cast = ("Morgana", "Assassin", "Oberon", *CAST["B"][:5])
    view = open_view(Scenario("B", tuple(NAMES[:8]), cast, (Lady(2, "Cid", "Bob", "GOOD"),)))
    assert holds(knows("Bob", role("Cid", "Oberon")), view)
    assert not holds(knows("Fay", faction("Cid", "EVIL")), view)


TABLE_8 = [
    (("Assassin", "Morgana"), "Assassin", ("fail", "success"), 1),
    (("Assassin", "Morgana"), "Mordred", ("fail", "fail"), 2),
    (("Assassin", "Mordred"), None, ("fail", "success"), 1),
    (("Morgana", "Mordred"), "Assassin", ("success", "success"), 0),
    (("Morgana", "Mordred"), "Mordred", ("fail", "success"), 1),
    (("Assassin", "Morgana", "Mordred"), None, ("fail", "success", "success"), 1),
    (("Assassin",), None, ("fail",), 1),
    (("Morgana",), None, ("fail",), 1),
    (("Mordred",), None, ("fail",), 1),
]


@pytest.mark.parametrize(("evil", "belief", "cards", "count"), TABLE_8)
def test_every_row_of_the_sabotage_table(evil, belief, cards, count) -> None:
    team = [*evil, "Loyal Servant"]
    for own, expected in zip(evil, cards, strict=True):
        others = [member for member in team if member != own]
        held = belief if own == "Morgana" else None
        assert protocol_card(own, others, LINEUPS["A"], held) == expected
    assert protocol_card("Loyal Servant", evil, LINEUPS["A"]) == "success"
    assert fail_range(team, LINEUPS["A"], belief) == (count, count)


@pytest.mark.parametrize("other", ["Assassin", "Mordred"])
def test_without_a_stated_belief_morgana_is_not_determined(other: str) -> None:
    assert protocol_card("Morgana", [other, "Merlin"], LINEUPS["A"]) == "open"
    low, high = fail_range(["Morgana", other], LINEUPS["A"])
    assert (low, high) == ((1, 2) if other == "Assassin" else (0, 1))


def test_without_mordred_in_play_morganas_teammate_is_the_assassin() -> None:
    assert protocol_card("Morgana", ["Assassin"], LINEUPS["B"]) == "success"
    with pytest.raises(SourceError, match="in lineup B her teammate can be Assassin"):
        protocol_card("Morgana", ["Assassin"], LINEUPS["B"], "Mordred")


def test_oberon_is_unknown_to_the_protocol() -> None:
    assert protocol_card("Oberon", ["Assassin"], LINEUPS["C"]) == "open"
    assert protocol_card("Mordred", ["Oberon"], LINEUPS["C"]) == "fail"
    assert fail_range(["Mordred", "Oberon", "Merlin"], LINEUPS["C"]) == (1, 2)


def test_the_protocol_filters_only_where_declared_and_never_on_two_fails() -> None:
    names, cast = tuple(NAMES[:7]), tuple(CAST["A"])
    clean = Quest(1, ("Eve", "Ann"), 0)
    assassin = knows("Cid", {"op": "not", "of": role("Eve", "Assassin")})
    with pytest.raises(SourceError, match="does not declare"):
        card_of(Scenario("A", names, cast), "Eve", ("Eve", "Ann"))
    # Fay is Morgana, Gus Mordred: together they may show no fail, one of them alone may not.
    pair = (Quest(1, ("Fay", "Gus"), 0),)
    for declared in (False, True):
        view = open_view(Scenario("A", names, cast, pair, protocol=declared))
        no_assassin = knows("Cid", {"op": "not", "of": role("Fay", "Assassin")})
        assert holds(no_assassin, view) is declared
    quest_4 = (Quest(4, ("Eve", "Ann", "Bob", "Cid"), 0),)
    assert not holds(assassin, Scenario("A", names, cast, quest_4, protocol=True))
    assert not holds(assassin, Scenario("A", names, cast, (clean,)))


def test_a_stated_belief_is_about_the_pending_team_only() -> None:
    scenario = Scenario(
        "A",
        tuple(NAMES[:7]),
        tuple(CAST["A"]),
        protocol=True,
        beliefs={"Fay": "Mordred"},
        pending=(1, ("Fay", "Eve")),
    )
    assert card_of(scenario, "Fay", ("Eve", "Fay")) == "fail"
    assert card_of(scenario, "Fay", ("Fay", "Gus")) == "open"
    for team, count in ((["Fay", "Eve"], 2), (["Fay", "Gus"], "open")):
        claim = {"op": "fails", "team": team, "count": count}
        assert holds(claim, scenario)
        assert naive_of(scenario).true(claim, scenario.roles)


def test_motives_rest_on_what_was_known_when_acting() -> None:
    # Cid votes against Eve's team and learns only later, from the Lady, that Eve is EVIL.
    vote = Proposal(2, "Dot", ("Dot", "Eve", "Bob"), ("Cid",))
    history = (vote, Lady(2, "Cid", "Eve", "EVIL"), Proposal(3, "Eve", vote.team, ("Cid", "Gus")))
    scenario = Scenario("A", tuple(NAMES[:7]), tuple(CAST["A"]), history)

    def motive(seat: str, event: int):
        known = {"op": "at", "event": event, "of": knows(seat, faction("Eve", "EVIL"))}
        return {
            "op": "motive",
            "seat": seat,
            "event": event,
            "objective": "keep_evil_off",
            "premises": [known],
        }

    cases = [("Cid", 0, False), ("Cid", 2, True), ("Gus", 2, False), ("Ann", 2, False)]
    for seat, event, expected in cases:
        assert holds(motive(seat, event), scenario) is expected
        assert naive_of(scenario).true(motive(seat, event), scenario.roles) is expected


# ---- laws -------------------------------------------------------------------------------------

SCENARIOS = st.builds(
    lambda seed, lineup: random_scenario(random.Random(seed), lineup),
    st.integers(0, 2**32),
    st.sampled_from(["A", "A", "B", "C"]),
)


@given(scenario=SCENARIOS, seed=st.integers(0, 2**32))
@settings(max_examples=60)
def test_laws_of_knowledge(scenario: Scenario, seed: int) -> None:
    rng = random.Random(seed)
    view = open_view(scenario)
    assert view.actual in view.rows
    me, you, they = rng.sample(scenario.players, 3)
    assert holds(knows(me, role(me, scenario.role(me))), view)
    assert holds(knows(me, knows(me, role(me, scenario.role(me)))), view)
    for claim in (faction(you, "EVIL"), role(you, "Morgana"), knows(you, faction(they, "EVIL"))):
        if holds(knows(me, claim), view):
            assert holds(claim, view)
            assert holds(possible(me, claim), view)
            assert holds(knows(me, knows(me, claim)), view)
        if not holds(possible(me, claim), view):
            assert not holds(claim, view)


@given(scenario=SCENARIOS)
@settings(max_examples=60)
def test_more_evidence_never_enlarges_the_world_set(scenario: Scenario) -> None:
    sizes = []
    for end in range(len(scenario.history) + 1):
        part = Scenario(
            scenario.lineup,
            scenario.players,
            scenario.roles,
            scenario.history[:end],
            protocol=scenario.protocol,
        )
        view = open_view(part)
        sizes.append(set(view.rows.tolist()))
        assert view.actual in sizes[-1]
    assert all(later <= earlier for earlier, later in pairwise(sizes))


@given(scenario=SCENARIOS)
@settings(max_examples=30)
def test_json_round_trip(scenario: Scenario) -> None:
    assert scenario_from_json(scenario_to_json(scenario)) == scenario


def test_the_largest_lineup_is_fast() -> None:
    cast = tuple(CAST["C"])
    history = (Quest(1, ("Ann", "Bob", "Gus"), 1),)
    scenario = Scenario("C", tuple(NAMES), cast, history)
    assignment_table("C")
    start = time.process_time()
    view = open_view(scenario)
    holds(knows("Ann", knows("Gus", faction("Hal", "EVIL"))), view)
    assert time.process_time() - start < 0.5


# ---- bad input --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"lineup": "D"}, "no Avalon lineup 'D'"),
        ({"roles": ("Merlin",) * 7}, "has the roles"),
        ({"players": ("Ann",) * 7}, "7 different names"),
        ({"history": (Quest(1, ("Ann", "Bob"), 1),)}, "its team has 0 EVIL members"),
        ({"history": (Quest(1, ("Ann", "Bob", "Cid"), 0),)}, "takes 2 different players"),
        ({"history": (Lady(2, "Ann", "Bob", "EVIL"),)}, "a GOOD holder reports truthfully"),
        ({"history": (Lady(2, "Ann", "Ann", None),)}, "themselves"),
        ({"pov": "Zed"}, "Nobody called 'Zed' plays"),
    ],
)
def test_impossible_states_are_refused(change, words: str) -> None:
    fields = {"lineup": "A", "players": tuple(NAMES[:7]), "roles": tuple(CAST["A"])} | change
    with pytest.raises(SourceError, match=words):
        Scenario(**fields)


@pytest.mark.parametrize(
    ("claim", "words"),
    [
        ({"op": "know"}, "Did you mean knows"),
        ({"op": "role", "seat": "Ann", "role": "Merlyn"}, "Did you mean Merlin"),
        ({"op": "lied", "event": 0}, "expected a use of the Lady"),
        ({"op": "and", "of": [{"op": "or", "of": []}, {"op": "role"}]}, "at least one"),
        (knows("Ann", {"op": "card", "seat": "Ann"}), "cannot stand inside"),
    ],
)
def test_malformed_claims_are_refused(claim, words: str) -> None:
    scenario = Scenario("A", tuple(NAMES[:7]), tuple(CAST["A"]))
    with pytest.raises(SourceError, match=words):
        holds(claim, scenario)
