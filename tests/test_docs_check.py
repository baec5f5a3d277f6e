"""The docs check finds what it is there to find."""

from tests.docs_check import problems


def test_broken_links_and_examples_are_found(tmp_path):
    (tmp_path / "there.md").touch()
    page = tmp_path / "page.md"
    page.write_text(
        """[fine](there.md#part) [elsewhere](https://example.org) [missing](gone.md) `[x](code.md)`
```python
await fine()
```
```python
def broken(
```
```toml
x =
```
""",
        encoding="utf-8",
    )
    link, python, toml = problems(page)
    assert "gone.md" in link
    assert "python example at line 5" in python
    assert "toml example at line 8" in toml
