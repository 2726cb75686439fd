"""Pages in a browser, where there is one."""

import shutil
import subprocess

import pytest

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)


@pytest.fixture(scope="session")
def browse(tmp_path_factory):
    if CHROMIUM is None:
        pytest.skip("there is no Chromium")

    def start(page, *argv):
        profile = tmp_path_factory.mktemp("profile")
        command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic"]
        command += ["--no-first-run", "--disable-background-networking", "--disable-sync"]
        command += ["--disable-component-update", f"--user-data-dir={profile}"]
        command += ["--window-size=1300,1000", "--virtual-time-budget=5000", *argv]
        done = subprocess.run([*command, page.as_uri()], capture_output=True, timeout=50)
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout.decode()

    return start
