"""The complete rules as one system message, the same for every item.

Its tokens are a prefix that all items share, so nothing of an item may enter it.
"""

from __future__ import annotations

from typing import Final

from interp.sources.avalon.rules import EVIL_ROLES, LINEUPS, ROLES, Lineup

__all__ = ["RULESET"]


def _roles_text(lineup: Lineup, *, evil: bool) -> str:
    names = [role for role in ROLES if role in lineup.roles and (role in EVIL_ROLES) is evil]
    counts = {role: lineup.roles.count(role) for role in names}
    return ", ".join(role if n == 1 else f"{n} {role}s" for role, n in counts.items())


def _lineup_text(lineup: Lineup) -> str:
    sizes = ", ".join(str(size) for size in lineup.quest_sizes)
    return (
        f"- Lineup {lineup.name}, {lineup.n_seats} players. "
        f"GOOD: {_roles_text(lineup, evil=False)}. EVIL: {_roles_text(lineup, evil=True)}. "
        f"Team sizes of Quests 1 to 5: {sizes}."
    )


RULESET: Final = f"""\
You judge statements about games of Avalon, a game of hidden roles. These are the rules.

AIM
A GOOD majority plays against an EVIL minority. GOOD needs three successful Quests; after the \
third, the Assassin names one player, and if that player is Merlin, EVIL wins after all. EVIL \
also wins with three failed Quests, or when five proposals in a row are rejected on one Quest.

ROLES AND WHAT THEY SEE AT NIGHT
- Merlin (GOOD) is shown every EVIL player except Mordred, as EVIL, without their roles.
- Percival (GOOD) is shown Merlin and Morgana as a pair, without being told which is which.
- A Loyal Servant (GOOD) is shown nobody and knows only the own role.
- Assassin, Morgana and Mordred (EVIL) are shown one another as EVIL, without roles. Oberon is \
not among those they are shown.
- Oberon (EVIL) is shown nobody, and the other EVIL players are not shown Oberon.
Everyone knows the lineup, the own role, and these rules.

COURSE OF PLAY
The leader, who changes after every proposal, proposes a team. All players vote in the open; a \
strict majority approves. The approved team then plays cards in secret: GOOD players always play \
success, EVIL players play success or fail. Only the number of fail cards is made public. One \
fail card sinks a Quest, except that Quest 4 takes two. A count of fails therefore shows that at \
least that many EVIL players were on the team; no fail card proves nothing about it by itself.

LADY OF THE LAKE
After a Quest the holder of the Lady looks at the card of another player, which shows truly \
whether that player is GOOD or EVIL, and nothing about the role. The holder may then announce a \
result that nobody else can check. By default a GOOD holder announces the truth; an EVIL holder \
may announce anything. Everyone knows this default.

LINEUPS
{chr(10).join(_lineup_text(lineup) for lineup in LINEUPS.values())}

SABOTAGE PROTOCOL (only in scenarios that declare it)
It binds Assassin, Morgana and Mordred; duty to sabotage falls in this order, the Assassin \
first. They play without talking, and tell teammates on the team by faction only.
- The Assassin always plays fail.
- Morgana plays fail if no EVIL teammate known to her is on the team. With both of the others on \
the team she plays success. With exactly one, she plays success if she takes that player to be \
the Assassin and fail if she takes that player to be Mordred; if no such belief is stated, her \
card is not determined. Where the lineup has no Mordred, her one known teammate is the Assassin.
- Mordred plays fail if no EVIL teammate known to him is on the team, and success otherwise.
- Oberon is not bound by the protocol, so Oberon's card is not determined. GOOD plays success.
The protocol never applies to Quest 4. Knowing all roles does not supply a belief that is not \
stated.

MOTIVES
Attribute a motive only if every fact it rests on holds, the player was in a position to know it \
when acting, and the aim belongs to the player's role: GOOD players protect those they know to be \
GOOD and expose those they know to be EVIL; Percival also shelters whoever may be Merlin. EVIL \
players protect or sacrifice known teammates, frame players they know to be GOOD, get saboteurs \
onto teams and keep clean teams off; the Assassin looks for Merlin, Morgana poses as Merlin, \
Mordred hides from Merlin. Staying out of sight counts as a motive only where the scenario \
declares it as that player's aim.

HOW TO JUDGE
Use these rules, what the scenario states, and for a player's view only what that player can \
know from the own role, the night, the own uses of the Lady, and public events. Behaviour such as \
votes and arguments proves nothing about a role. An EVIL player's own earlier cards count only if \
the scenario states them.
"""
