"""Progress without a terminal: plain lines on the standard error stream."""

from guerdon.progress import ProgressBar


def test_without_a_terminal_each_share_of_the_total_is_one_line(capsys):
    progress = ProgressBar(10, what="episodes", lines=2)
    for done in range(1, 11):
        progress.advance(done, "expert" if done < 10 else "")
    progress.write_line("wrote data")
    progress.close()
    assert capsys.readouterr().err == "episodes 5/10: expert\nepisodes 10/10\nwrote data\n"
