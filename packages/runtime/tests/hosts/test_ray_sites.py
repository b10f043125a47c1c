"""Which machines of a Ray cluster a member may stand on, from labels alone."""

from tailrace.runtime.hosts.ray_placement import (
    SITE,
    labelled_sites,
    labels_of,
    machine_names,
    machines_at,
    room_elsewhere,
)


def machine(id_, site=None, alive=True, **labels):
    return {"NodeID": id_, "Alive": alive, "Labels": {**labels, **({} if site is None else {SITE: site})}}


CLUSTER = [machine("a"), machine("b"), machine("x", "west"), machine("y", "west"), machine("z", "east", alive=False)]


def test_living_machines_are_counted_by_their_label():
    assert labelled_sites(CLUSTER) == {"west": 2}
    assert labelled_sites([{"NodeID": "a", "Alive": True}]) == {}


def test_a_member_stands_on_machines_of_its_site_and_the_trainers_are_those_without_a_label():
    assert machines_at("west", CLUSTER) == ["x", "y"]
    assert machines_at("", CLUSTER) == ["a", "b"]


def test_one_machine_stands_for_all_sites_where_none_has_a_label():
    assert machines_at("west", CLUSTER[:2]) == ["a", "b"]
    assert labels_of("west", "", {}) == {}


def test_labels_are_asked_for_as_ray_writes_them():
    sites = {"west": 2, "east": 1}
    assert labels_of("west", "", sites) == {SITE: "west"}
    assert labels_of("", "", sites) == {SITE: "!in(east,west)"}
    assert labels_of("", "H20", {}) == {"ray.io/accelerator-type": "H20"}
    assert labels_of("west", "H20", sites) == {SITE: "west", "ray.io/accelerator-type": "H20"}


def nodes(**gpus):
    return [machine(id_) | {"Resources": {"CPU": 8.0, "GPU": float(count)}} for id_, count in gpus.items()]


def test_a_machine_is_left_only_for_others_that_have_room_for_all_that_stands_there():
    standing = {"a": [(1, 2), (1, 1)], "b": [(1, 3)], "c": [(0, 1)]}
    assert room_elsewhere("a", nodes(a=4, b=4, c=4), standing) == ("c", "b")
    assert room_elsewhere("a", nodes(a=4, b=4, c=3), standing) == ("c", "b"), "two on one, one on the other"
    assert room_elsewhere("a", nodes(a=4, b=4, c=2), standing) == ()
    assert room_elsewhere("a", nodes(a=4), standing) == room_elsewhere("z", nodes(a=4, b=9), standing) == ()
    one, dead = nodes(a=4, b=0)[0], nodes(c=9)[0] | {"Alive": False}
    assert room_elsewhere("a", [one, dead], {"a": [(0, 0)]}) == ()
    west = nodes(x=9)[0] | {"Labels": {SITE: "west"}}
    assert room_elsewhere("a", [one, west], {"a": [(0, 1)]}) == ()
    assert room_elsewhere("a", nodes(a=4, b=0), {"a": [(9, 0)]}) == ()
    assert room_elsewhere("a", nodes(a=4, b=0), {}) == ("b",)


def test_a_machine_has_the_name_that_it_was_given_or_its_address():
    def row(id_, address, name=""):
        return {"NodeID": id_ * 10, "NodeManagerAddress": address, "NodeName": name, "Alive": True}

    assert machine_names([row("a", "10.0.0.1"), row("b", "10.0.0.2", "left")]) == {
        "a" * 10: "10.0.0.1",
        "b" * 10: "left",
    }
    # one that came back under its address, or raylets of one machine
    assert machine_names([row("a", "10.0.0.1"), row("b", "10.0.0.1"), row("c", "10.0.0.3")]) == {
        "a" * 10: f"10.0.0.1/{'a' * 8}",
        "b" * 10: f"10.0.0.1/{'b' * 8}",
        "c" * 10: "10.0.0.3",
    }
