from fedjax_ssl.words import counted


def test_one_thing_has_no_s():
    assert [counted(number, "run") for number in (0, 1, 2, 1200)] == ["0 runs", "1 run", "2 runs", "1,200 runs"]
    assert counted(3, "process", "processes") == "3 processes"
