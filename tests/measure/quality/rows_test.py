"""The rows of the table: every family, options that exist, and claims about rows that exist."""

from tfcap import configs
from tfcap.measure.quality import rows


def test_rows_have_unique_names_and_options_that_exist():
    assert len({row.name for row in rows.ROWS.values()}) == len(rows.ROWS) == len(rows.KEYS)
    for row in rows.ROWS.values():
        known = configs.resolve(row.experiment).task.model.get().as_dict()
        assert {*row.options, *row.widths} <= set(known), row.key
        assert not set(row.options) & set(row.widths)


def test_the_families_of_the_papers_have_a_row():
    wanted = {"show_tell", "attention_lstm", "updown", "xlan", "transformer", "xtransformer"}
    assert wanted | {"expansionnet", "mrnn", "mrnn_shared"} <= {
        row.experiment for row in rows.ROWS.values()
    }


def test_the_rows_of_x_lan_add_one_thing_after_the_other():
    first, second, third, last = (
        rows.ROWS[key].options for key in ("xlan_row1", "xlan_row2", "xlan_row3", "xlan")
    )
    assert first["attention"] == "additive" and "attention" not in second
    assert [row["encoder_layers"] for row in (first, second, third, last)] == [0, 0, 1, 4]
    assert second["activation"] == third["activation"] == "relu" and "activation" not in last


def test_claims_are_about_rows_and_are_left_out_without_both():
    known = {row.key for row in rows._ROWS}
    assert all(set(pair) <= known and len(set(pair)) == 2 for pair in rows.CLAIMS)
    assert rows.claims(["xlan", "updown", "mrnn"]) == [("xlan", "updown")]
    assert rows.claims(["updown"]) == []
