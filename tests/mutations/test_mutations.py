"""Every planted mistake still has its place in the product, and its tests exist."""

from mutate import ROOT, mutated, place_of, read_rows, sources_of, test_files_of

test_files_of.__test__ = False  # not a test


def test_every_planted_mistake_has_its_place_and_its_tests():
    sources, tests, faults = sources_of(ROOT), test_files_of(ROOT), []
    rows = read_rows()
    for row in rows:
        try:
            mutated(place_of(row, sources).read_text("utf-8"), row)
        except (LookupError, SyntaxError) as error:
            faults.append(str(error))
        faults += [f"{row.name}: there is no {name}." for name in row.tests if name not in tests]
    assert not faults, "\n".join(faults)
    assert len({row.name for row in rows}) == len(rows) >= 60
