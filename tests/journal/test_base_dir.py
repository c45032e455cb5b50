from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path

import pytest

from otel_bridge.errors import ConfigError
from otel_bridge.journal.base_dir import BaseDir, base_dir, find_base
from otel_bridge.journal.machine import file_system, is_network, network_file_system
from support.otlp.journal_samples import python

ROOT = "22 1 0:20 / / rw,relatime shared:1 - ext4 /dev/vda1 rw\n"


def mounted(point: str, kind: str) -> str:
    return f"99 22 0:50 / {point} rw,relatime shared:9 master:1 - {kind} server:/export rw,vers=4.2\n"


def test_the_default_is_a_folder_below_the_working_folder(tmp_path: Path) -> None:
    assert find_base({}, tmp_path, mountinfo=ROOT) == BaseDir(tmp_path / ".otel-bridge")
    assert base_dir({}, tmp_path) == tmp_path / ".otel-bridge"


def test_a_named_folder_is_taken_wherever_it_is_and_made_absolute(
    tmp_path: Path,
) -> None:
    mountinfo = ROOT + mounted(str(tmp_path), "nfs4")

    found = find_base(
        {"OTEL_BRIDGE_DIR": "runs/../here"}, tmp_path, mountinfo=mountinfo
    )

    assert found == BaseDir(tmp_path / "here", None, "nfs4")


def test_a_folder_whose_name_is_not_utf_8_is_refused(tmp_path: Path) -> None:
    odd = tmp_path / os.fsdecode(b"n\xff")

    with pytest.raises(
        ConfigError, match=r"n.udcff.* is not UTF-8.*set OTEL_BRIDGE_DIR"
    ):
        find_base({}, odd, mountinfo=ROOT)
    assert find_base({"OTEL_BRIDGE_DIR": "/data"}, odd, mountinfo=ROOT).path == Path(
        "/data"
    )


def test_on_a_network_file_system_the_folder_is_one_of_this_machine(
    tmp_path: Path,
) -> None:
    work, home = tmp_path / "work", tmp_path / "home"
    mountinfo = ROOT + mounted(str(work), "lustre")
    environment = {"HOME": str(home)}

    first = find_base(environment, work / "job1", mountinfo=mountinfo)
    second = find_base(environment, work / "job2", mountinfo=mountinfo)
    again = find_base(environment, work / "job1", mountinfo=mountinfo)

    assert (first.instead_of, first.file_system) == (
        work / "job1" / ".otel-bridge",
        "lustre",
    )
    assert first.path.parent == home / ".local/state/otel-bridge"
    assert re.fullmatch(r"job1-[0-9a-f]{16}", first.path.name)
    assert first == again
    assert first.path != second.path


def test_a_home_on_the_network_is_passed_over_too(tmp_path: Path) -> None:
    mountinfo = ROOT + mounted(str(tmp_path / "net"), "nfs")
    environment = {
        "HOME": str(tmp_path / "net/home"),
        "XDG_STATE_HOME": "relative",
        "TMPDIR": str(tmp_path / "local"),
    }

    found = find_base(environment, tmp_path / "net/job", mountinfo=mountinfo)

    assert found.path.is_relative_to(tmp_path / "local")
    assert found.instead_of == tmp_path / "net/job/.otel-bridge"


CLOSED_HOME = """
import os, sys
from pathlib import Path
from otel_bridge.journal.base_dir import find_base
if os.getuid() == 0:
    os.setuid(65534)
env = {"HOME": sys.argv[1] + "/closed", "TMPDIR": sys.argv[1] + "/open"}
print(find_base(env, Path(sys.argv[1], "net"), mountinfo=sys.argv[2]).path)
"""


def test_a_home_that_the_user_may_not_enter_is_passed_over() -> None:
    # Not below TMPDIR, which another user may not enter.
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        Path(folder, "closed").mkdir(mode=0)
        Path(folder, "open").mkdir()
        Path(folder, "open").chmod(0o777)
        mountinfo = ROOT + mounted(f"{folder}/net", "nfs")

        with python(CLOSED_HOME, folder, mountinfo) as process:
            path = process.communicate()[0]

    assert path.startswith(f"{folder}/open/otel-bridge-")


def test_the_home_of_an_unknown_user_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError,
        match=r"OTEL_BRIDGE_DIR='~unknown-user/runs'.*set it to an absolute path",
    ):
        find_base({"OTEL_BRIDGE_DIR": "~unknown-user/runs"}, tmp_path)


def test_a_path_with_a_zero_byte_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="without a zero byte"):
        find_base({"OTEL_BRIDGE_DIR": "a\0b"}, tmp_path)


def test_a_named_state_folder_goes_first(tmp_path: Path) -> None:
    mountinfo = ROOT + mounted(str(tmp_path / "net"), "beegfs")
    environment = {
        "HOME": str(tmp_path / "home"),
        "XDG_STATE_HOME": str(tmp_path / "state"),
    }

    found = find_base(environment, tmp_path / "net", mountinfo=mountinfo)

    assert found.path.parent == tmp_path / "state/otel-bridge"


def test_with_no_local_disk_at_all_the_default_stays(tmp_path: Path) -> None:
    found = find_base({"HOME": str(tmp_path)}, tmp_path, mountinfo=mounted("/", "nfs"))

    assert found == BaseDir(tmp_path / ".otel-bridge", None, "nfs")


@pytest.mark.parametrize(
    "kind",
    [
        "nfs",
        "nfs4",
        "lustre",
        "cifs",
        "smb3",
        "beegfs",
        "gpfs",
        "fuse.sshfs",
        "fuse.juicefs",
    ],
)
def test_network_file_systems_are_known(kind: str) -> None:
    assert is_network(kind)


@pytest.mark.parametrize(
    "kind",
    [
        "ext4",
        "xfs",
        "btrfs",
        "tmpfs",
        "overlay",
        "apfs",
        "fuseblk",
        "fuse.ntfs-3g",
        "9p",
    ],
)
def test_local_file_systems_are_known(kind: str) -> None:
    assert not is_network(kind)


def test_the_innermost_and_the_latest_mount_counts() -> None:
    mountinfo = (
        ROOT
        + mounted("/data", "nfs")
        + mounted("/data/local", "xfs")
        + mounted("/data", "lustre")
    )
    paths = ["/data/x", "/data", "/data/local/y", "/database", "/"]

    assert [file_system(Path(path), mountinfo) for path in paths] == [
        "lustre",
        "lustre",
        "xfs",
        "ext4",
        "ext4",
    ]


def test_a_mount_point_with_spaces_and_a_link_to_it_are_understood(
    tmp_path: Path,
) -> None:
    (tmp_path / "my data").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "my data")
    mountinfo = ROOT + mounted(f"{tmp_path}/my\\040data", "nfs")

    assert network_file_system(tmp_path / "link" / "x", mountinfo) == "nfs"


def test_garbled_mounts_and_none_report_nothing() -> None:
    assert file_system(Path("/x"), "garbage\n\n1 2 3 - \n") is None
    assert network_file_system(Path("/x"), "") is None
    assert network_file_system(Path("/proc")) is None
