import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.paramserver.group.topology import NOTHING, elect, plan


def changed_edges(before, after):
    """The next hops of the relays that must be told something new."""
    old = {} if before is None else before.next_hops()
    return {name: hops for name, hops in after.next_hops().items() if old.get(name) != hops}


SITES = ("", "east", "west")


def worlds(least=1, most=12):
    """Relays with sites, progress and a number of roots."""
    names = [f"r{index}" for index in range(most)]
    return st.integers(least, most).flatmap(
        lambda count: st.tuples(
            st.fixed_dictionaries({name: st.sampled_from(SITES) for name in names[:count]}),
            st.fixed_dictionaries(
                {name: st.tuples(st.integers(-1, 3), st.integers(-1, 3), st.integers(0, 3)) for name in names[:count]}
            ),
            st.integers(1, 3),
        )
    )


def walk(forest):
    """Every relay as often as it is reached from the roots, and the edges."""
    reached = []
    hops = forest.next_hops()
    queue = [master for master in forest.masters if master is not None]
    while queue:
        assert len(reached) < 1000, "a cycle"
        name = queue.pop()
        reached.append(name)
        queue += hops[name]
    return reached, hops


def holds(forest, sites, living, home, roots):
    reached, hops = walk(forest)
    assert sorted(reached) == sorted(living)
    sources = {hop: name for name, into in hops.items() for hop in into}
    for site in {sites[name] for name in living}:
        entries = [name for name in living if sites[name] == site and sites.get(sources.get(name)) != site]
        masters = [name for name in forest.masters if name is not None and sites[name] == site]
        if site == home:
            at_home = sum(sites[name] == home for name in living)
            assert len(masters) == min(roots, at_home) == len(entries)
        else:
            assert len(entries) == 1, (site, entries)  # over one edge, from a relay or from the trainer
    assert forest.masters[0] is not None or not living


@settings(deadline=None)
@given(worlds())
def test_every_relay_is_reached_once_and_each_site_over_one_edge(world):
    sites, progress, roots = world
    forest = plan(sites, list(sites), progress, home="", roots=roots)
    holds(forest, sites, list(sites), "", roots)
    assert forest == plan(sites, list(sites), progress, home="", roots=roots)
    if "" in sites.values():
        sizes = [len(tree) for tree in forest.trees]
        assert max(sizes) - min(sizes) <= 1  # receivers balanced over the roots
    for chain in forest.remote.values():
        assert progress[chain[0]] == max(progress[name] for name in chain)


@settings(deadline=None)
@given(worlds(least=2), st.data())
def test_one_death_tells_three_relays_at_most(world, data):
    sites, progress, roots = world
    living = list(sites)
    forest = plan(sites, living, progress, home="", roots=roots)
    while len(living) > 1:
        dead = data.draw(st.sampled_from(living), label="dies")
        living = [name for name in living if name != dead]
        after = plan(sites, living, progress, home="", roots=roots, before=forest)
        holds(after, sites, living, "", roots)
        if after.home == forest.home:
            told = changed_edges(forest, after)
            assert len(told) <= 3, (forest, dead, after)
        forest = after


@settings(deadline=None)
@given(worlds(least=3), st.data())
def test_deaths_and_returns_in_any_order(world, data):
    sites, progress, roots = world
    living, forest = list(sites), None
    for _ in range(data.draw(st.integers(1, 12))):
        name = data.draw(st.sampled_from(sorted(sites)))
        living = [other for other in living if other != name] if name in living else [*living, name]
        forest = plan(sites, living, progress, home="", roots=roots, before=forest)
        holds(forest, sites, living, "", roots)


def test_laminars_chain_and_its_repair():
    sites = dict.fromkeys("abcd", "")
    chain = plan(sites, list("abcd"), {}, home="")
    assert chain.next_hops() == {"a": ("b",), "b": ("c",), "c": ("d",), "d": ()}
    bridged = plan(sites, list("abd"), {}, home="", before=chain)
    assert changed_edges(chain, bridged) == {"b": ("d",)}
    back = plan(sites, list("abdc"), {}, home="", before=bridged)
    assert changed_edges(bridged, back) == {"c": (), "d": ("c",)}


def test_a_dead_master_is_followed_by_the_one_furthest_ahead():
    sites = dict.fromkeys("abcd", "")
    chain = plan(sites, list("abcd"), {}, home="")
    progress = {"b": (1, 2, 3), "c": (1, 2, 4), "d": (0, 9, 9)}
    after = plan(sites, list("bcd"), progress, home="", before=chain)
    assert after.trees == (("c", "b", "d"),)


def test_an_election_among_equals_goes_by_name():
    assert elect(["c", "a", "b"], dict.fromkeys("abc", NOTHING)) == "a"
    assert elect(["c", "a", "b"], {"b": (0, -1, 0)}) == "b"
    with pytest.raises(ValueError, match="empty"):
        elect([], {})


def test_streamrl_a_tree_for_each_rank_and_one_edge_across():
    sites = {**dict.fromkeys("abcde", "home"), **dict.fromkeys("xyz", "far")}
    forest = plan(sites, list("abcdexyz"), {}, home="home", roots=2)
    assert forest.trees == (("a", "c", "e"), ("b", "d"))
    assert forest.next_hops()["a"] == ("c", "x")
    assert forest.remote == {"far": ("x", "y", "z")}
    assert changed_edges(forest, plan(sites, list("abcdeyz"), {}, home="home", roots=2, before=forest)) == {
        "a": ("c", "y")
    }


def test_the_trees_stand_elsewhere_until_a_relay_lives_at_home_again():
    sites = {"a": "home", "x": "far", "y": "far"}
    forest = plan(sites, list("axy"), {}, home="home", roots=2)
    away = plan(sites, list("xy"), {}, home="home", roots=2, before=forest)
    assert (away.home, away.trees, away.remote) == ("far", (("x", "y"), ()), {})
    again = plan(sites, list("xya"), {}, home="home", roots=2, before=away)
    assert (again.home, again.trees, again.remote) == ("home", (("a",), ()), {"far": ("x", "y")})


def test_what_is_no_group():
    for sites, living, roots in [({}, ["a"], 1), ({"a": ""}, ["a", "a"], 1), ({"a": ""}, ["a"], 0)]:
        with pytest.raises(ValueError, match="expected"):
            plan(sites, living, {}, home="", roots=roots)


def test_the_number_told_does_not_grow_with_the_group():
    sites = {f"r{index:04}": "" for index in range(1000)}
    chain = plan(sites, list(sites), {}, home="")
    for dead in ("r0000", "r0500", "r0999"):
        living = [name for name in sites if name != dead]
        assert len(changed_edges(chain, plan(sites, living, {}, home="", before=chain))) <= 1
