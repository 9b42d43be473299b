import pytest

from burnish.maths.overlong import soft_overlong_penalty


@pytest.mark.parametrize(
    ("length", "penalty"), [(16384, 0.0), (16385, -1 / 4096), (18432, -0.5), (20480, -1.0), (20481, -1.0), (0, 0.0)]
)
def test_the_penalty_grows_linearly_inside_the_buffer(length, penalty):
    assert soft_overlong_penalty(length, limit=20480, buffer=4096) == pytest.approx(penalty)


def test_no_buffer_means_no_penalty_even_at_the_limit():
    assert soft_overlong_penalty(64, limit=64, buffer=0) == 0.0


@pytest.mark.parametrize("buffer", [-1, 65])
def test_a_buffer_outside_the_limit_is_refused(buffer):
    with pytest.raises(ValueError, match=f"got {buffer}"):
        soft_overlong_penalty(10, limit=64, buffer=buffer)
