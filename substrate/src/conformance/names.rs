//! Directories, names, renames, removals, locks.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::{Check, Hosts, Outcome, ensure, ensure_fails, get, names_in, path, put};
use crate::ErrorClass::{Exists, Invalid, NotFound, Other};
use crate::{Entry, EntryKind, OpenMode};

pub(super) const CHECKS: &[Check] = &[
    Check { name: "paths stay below the root", run: paths },
    Check { name: "the root is the empty path, or a dot", run: root },
    Check { name: "a directory is created once", run: create_dir },
    Check { name: "a listing has every entry once, with its kind", run: list },
    Check { name: "names of removed open files are left out of listings", run: silly_names },
    Check { name: "any name that the system allows works", run: odd_names },
    Check { name: "a rename replaces a file", run: rename_file },
    Check { name: "a rename stays in its directory", run: rename_across },
    Check { name: "a file moves to another directory, or is left where it is", run: move_file },
    Check { name: "a directory moves with everything below it and replaces nothing", run: rename_dir },
    Check { name: "a file is removed by remove_file only", run: remove_file },
    Check { name: "a directory is removed by remove_dir only, and when it is empty", run: remove_dir },
    Check { name: "directories and trees can be synced", run: sync },
    Check { name: "space is known or unknown, never nonsense", run: space },
    Check { name: "a lock is held once, and goes with its guard", run: lock },
];

fn paths(hosts: &Hosts) -> Outcome {
    let volume = hosts.first.as_ref();
    volume.create_dir(path("d"))?;
    put(volume, "f", b"x")?;
    for bad in ["/", "/f", "..", "../f", "d/../f", "d/.."] {
        let bad = path(bad);
        let what = bad.display().to_string();
        ensure_fails(&what, volume.create_dir(bad), Invalid)?;
        ensure_fails(&what, volume.list(bad), Invalid)?;
        ensure_fails(&what, volume.rename(bad, path("g")), Invalid)?;
        ensure_fails(&what, volume.rename(path("f"), bad), Invalid)?;
        ensure_fails(&what, volume.move_file(bad, path("d/g")), Invalid)?;
        ensure_fails(&what, volume.move_file(path("f"), bad), Invalid)?;
        ensure_fails(&what, volume.remove_file(bad), Invalid)?;
        ensure_fails(&what, volume.remove_dir(bad), Invalid)?;
        ensure_fails(&what, volume.sync_dir(bad), Invalid)?;
        ensure_fails(&what, volume.sync_tree(bad), Invalid)?;
        for mode in [OpenMode::Read, OpenMode::ReadUncached, OpenMode::Write, OpenMode::CreateNew] {
            ensure_fails(&what, volume.open(bad, mode), Invalid)?;
        }
        ensure_fails(&what, volume.make_durable(bad, 1), Invalid)?;
        ensure_fails(&what, volume.create_records(bad, 1), Invalid)?;
        ensure_fails(&what, volume.open_records(bad), Invalid)?;
        ensure_fails(&what, volume.try_lock(bad), Invalid)?;
    }
    ensure!(names_in(volume, "")? == ["d", "f"], "a refused path had an effect");
    Ok(())
}

fn root(hosts: &Hosts) -> Outcome {
    let volume = hosts.first.as_ref();
    ensure!(volume.list(path(""))?.is_empty(), "a new volume is not empty");
    put(volume, "./f", b"x")?;
    ensure!(names_in(volume, ".")? == ["f"], "the root has two contents");
    ensure!(get(volume, "f")? == b"x", "a dot in a path matters");
    volume.sync_dir(path(""))?;
    volume.sync_tree(path(""))?;
    for unnamed in ["", "."] {
        ensure_fails("create the root", volume.create_dir(path(unnamed)), Invalid)?;
        ensure_fails("remove the root", volume.remove_dir(path(unnamed)), Invalid)?;
        ensure_fails("open the root", volume.open(path(unnamed), OpenMode::Read), Invalid)?;
    }
    Ok(())
}

fn create_dir(hosts: &Hosts) -> Outcome {
    let volume = hosts.first.as_ref();
    volume.create_dir(path("d"))?;
    volume.create_dir(path("d/e"))?;
    put(volume, "f", b"")?;
    ensure_fails("create it again", volume.create_dir(path("d")), Exists)?;
    ensure_fails("create it over a file", volume.create_dir(path("f")), Exists)?;
    ensure_fails("create it nowhere", volume.create_dir(path("x/y")), NotFound)?;
    ensure_fails("create it below a file", volume.create_dir(path("f/y")), Invalid)?;
    ensure!(names_in(volume, "d")? == ["e"], "the directory was replaced");
    Ok(())
}

fn list(hosts: &Hosts) -> Outcome {
    let volume = hosts.first.as_ref();
    volume.create_dir(path("d"))?;
    volume.create_dir(path("d/sub"))?;
    put(volume, "d/sub/deep", b"")?;
    for n in 0..500 {
        put(volume, &format!("d/{n:03}"), b"")?;
    }
    let mut entries = volume.list(path("d"))?;
    entries.sort();
    ensure!(entries.len() == 501, "{} entries instead of 501", entries.len());
    let dirs: Vec<_> = entries.iter().filter(|entry| entry.kind == EntryKind::Dir).collect();
    ensure!(dirs == [&Entry { name: "sub".into(), kind: EntryKind::Dir }], "directories: {dirs:?}");
    entries.dedup();
    ensure!(entries.len() == 501, "entries stand there twice");
    ensure_fails("list nothing", volume.list(path("x")), NotFound)?;
    ensure_fails("list a file", volume.list(path("d/000")), Invalid)?;
    Ok(())
}

fn silly_names(hosts: &Hosts) -> Outcome {
    let volume = hosts.first.as_ref();
    put(volume, ".nfs00000000000a1b2c0000001f", b"")?;
    volume.create_dir(path(".nfs00000000000a1b2c00000020"))?;
    put(volume, ".nfs", b"")?;
    let names = names_in(volume, "")?;
    ensure!(names == [".nfs", ".nfs00000000000a1b2c00000020"], "listed: {names:?}");
    Ok(())
}

fn odd_names(hosts: &Hosts) -> Outcome {
    let volume = hosts.first.as_ref();
    let longest = "x".repeat(255);
    let names: [&[u8]; 6] =
        [b"~new-1", b".hidden", b"with space", b"back\\slash", b"\xff\xfe not text", longest.as_bytes()];
    for name in names {
        let name = Path::new(OsStr::from_bytes(name));
        volume.open(name, OpenMode::CreateNew)?;
        ensure_fails("create it again", volume.open(name, OpenMode::CreateNew), Exists)?;
    }
    let mut found: Vec<_> = volume.list(path(""))?.into_iter().map(|entry| entry.name).collect();
    let mut expected: Vec<_> = names.iter().map(|name| OsStr::from_bytes(name).to_owned()).collect();
    found.sort();
    expected.sort();
    ensure!(found == expected, "listed: {found:?}");
    let too_long = "x".repeat(256);
    ensure_fails("a name of 256 bytes", volume.open(path(&too_long), OpenMode::CreateNew), Invalid)?;
    ensure_fails("a name with a zero", volume.open(path("a\0b"), OpenMode::CreateNew), Invalid)?;
    Ok(())
}

fn rename_file(hosts: &Hosts) -> Outcome {
    let volume = hosts.first.as_ref();
    volume.create_dir(path("d"))?;
    put(volume, "d/a", b"new")?;
    let replaced = put(volume, "d/b", b"old")?;
    volume.rename(path("d/a"), path("d/b"))?;
    ensure!(names_in(volume, "d")? == ["b"], "both names are there");
    ensure!(get(volume, "d/b")? == b"new", "the old file is still there");
    let mut bytes = [0; 8];
    ensure!(replaced.read_at(&mut bytes, 0)? == 3, "a handle on the replaced file is not usable");
    volume.rename(path("d/b"), path("d/b"))?;
    ensure!(get(volume, "d/b")? == b"new", "renaming to the same name lost the file");
    ensure_fails("rename nothing", volume.rename(path("d/x"), path("d/y")), NotFound)?;
    volume.create_dir(path("d/sub"))?;
    ensure_fails("a file onto a directory", volume.rename(path("d/b"), path("d/sub")), Invalid)?;
    Ok(())
}

fn rename_across(hosts: &Hosts) -> Outcome {
    let volume = hosts.first.as_ref();
    volume.create_dir(path("d"))?;
    put(volume, "a", b"")?;
    ensure_fails("down", volume.rename(path("a"), path("d/a")), Invalid)?;
    put(volume, "d/b", b"")?;
    ensure_fails("up", volume.rename(path("d/b"), path("b")), Invalid)?;
    volume.rename(path("./a"), path("c"))?;
    ensure!(names_in(volume, "")? == ["c", "d"], "a dot in a path makes another directory");
    Ok(())
}

fn move_file(hosts: &Hosts) -> Outcome {
    let volume = hosts.first.as_ref();
    volume.create_dir(path("d"))?;
    let open = put(volume, "f", b"one")?;
    if let Err(error) = volume.move_file(path("f"), path("d/f")) {
        // A volume that cannot says so, and the caller copies.
        ensure!(matches!(error.class, Invalid | Other), "a move fails with {error}");
        ensure!(names_in(volume, "")? == ["d", "f"] && names_in(volume, "d")?.is_empty(), "it is half done");
        return Ok(());
    }
    ensure_fails("what is not there", volume.move_file(path("gone"), path("d/gone")), NotFound)?;
    ensure!(names_in(volume, "")? == ["d"] && get(volume, "d/f")? == b"one", "it is not in one place, whole");
    open.write_all_at(&[std::io::IoSlice::new(b"O")], 0)?;
    ensure!(get(volume, "d/f")? == b"One", "a handle does not survive the move of its file");
    open.write_all_at(&[std::io::IoSlice::new(b"o")], 0)?;
    ensure_fails("to a directory that is not there", volume.move_file(path("d/f"), path("x/f")), NotFound)?;
    volume.move_file(path("d/f"), path("d/g"))?;
    ensure!(names_in(volume, "d")? == ["g"], "it does not move within its directory");
    volume.move_file(path("d/g"), path("d/f"))?;
    put(volume, "f", b"two")?;
    ensure_fails("a name that is taken", volume.move_file(path("f"), path("d/f")), Exists)?;
    ensure!(get(volume, "f")? == b"two" && get(volume, "d/f")? == b"one", "it has replaced another file");
    Ok(())
}

fn rename_dir(hosts: &Hosts) -> Outcome {
    let volume = hosts.first.as_ref();
    volume.create_dir(path("~new"))?;
    volume.create_dir(path("~new/0"))?;
    let open = put(volume, "~new/0/f", b"x")?;
    volume.rename(path("~new"), path("t"))?;
    ensure!(get(volume, "t/0/f")? == b"x", "the content did not move along");
    open.write_all_at(&[std::io::IoSlice::new(b"y")], 0)?;
    ensure!(get(volume, "t/0/f")? == b"y", "a handle does not survive the renaming of its directory");
    volume.create_dir(path("empty"))?;
    put(volume, "file", b"")?;
    ensure_fails("onto an empty directory", volume.rename(path("t"), path("empty")), Exists)?;
    ensure_fails("onto a file", volume.rename(path("t"), path("file")), Exists)?;
    ensure_fails("an empty one onto a full one", volume.rename(path("empty"), path("t")), Exists)?;
    ensure!(names_in(volume, "")? == ["empty", "file", "t"], "a refused rename had an effect");
    Ok(())
}

fn remove_file(hosts: &Hosts) -> Outcome {
    let volume = hosts.first.as_ref();
    let file = put(volume, "f", b"kept")?;
    volume.remove_file(path("f"))?;
    ensure!(volume.list(path(""))?.is_empty(), "the name is still there");
    ensure_fails("remove it again", volume.remove_file(path("f")), NotFound)?;
    ensure_fails("open it", volume.open(path("f"), OpenMode::Read), NotFound)?;
    file.write_all_at(&[std::io::IoSlice::new(b"K")], 0)?;
    let mut bytes = [0; 8];
    let read = file.read_at(&mut bytes, 0)?;
    ensure!(bytes.get(..read) == Some(b"Kept"), "a handle on the removed file is not usable");
    // A new file of that name is another file.
    put(volume, "f", b"new")?;
    ensure!(get(volume, "f")? == b"new" && file.length()? == 4, "the removed file came back");
    volume.create_dir(path("d"))?;
    ensure_fails("remove a directory as a file", volume.remove_file(path("d")), Invalid)?;
    Ok(())
}

fn remove_dir(hosts: &Hosts) -> Outcome {
    let volume = hosts.first.as_ref();
    volume.create_dir(path("d"))?;
    put(volume, "d/f", b"")?;
    ensure_fails("one that is not empty", volume.remove_dir(path("d")), Invalid)?;
    ensure_fails("a file", volume.remove_dir(path("d/f")), Invalid)?;
    volume.remove_file(path("d/f"))?;
    volume.remove_dir(path("d"))?;
    ensure_fails("again", volume.remove_dir(path("d")), NotFound)?;
    Ok(())
}

fn sync(hosts: &Hosts) -> Outcome {
    let volume = hosts.first.as_ref();
    volume.create_dir(path("t"))?;
    volume.sync_tree(path("t"))?;
    for dir in 0..5 {
        volume.create_dir(path(&format!("t/{dir}")))?;
        for file in 0..30 {
            put(volume, &format!("t/{dir}/{file}"), b"x")?;
        }
    }
    volume.sync_dir(path("t/0"))?;
    volume.sync_tree(path("t/0"))?;
    volume.sync_tree(path("t"))?;
    ensure_fails("sync no directory", volume.sync_dir(path("x")), NotFound)?;
    ensure_fails("sync no tree", volume.sync_tree(path("x")), NotFound)?;
    ensure_fails("sync a file as a directory", volume.sync_dir(path("t/0/0")), Invalid)?;
    Ok(())
}

fn space(hosts: &Hosts) -> Outcome {
    let space = hosts.first.space()?;
    ensure!(space.total_bytes != Some(0), "a total of zero means unknown");
    if let (Some(total), Some(available)) = (space.total_bytes, space.available_bytes) {
        ensure!(available <= total, "{available} bytes of {total} are available");
    }
    Ok(())
}

fn lock(hosts: &Hosts) -> Outcome {
    let volume = hosts.first.as_ref();
    let held = volume.try_lock(path("lock"))?;
    ensure!(held.is_some(), "a free lock was not given");
    ensure!(names_in(volume, "")? == ["lock"], "the lock has no file");
    ensure!(volume.try_lock(path("lock"))?.is_none(), "the lock is held twice");
    ensure!(hosts.second.try_lock(path("lock"))?.is_none(), "the lock is held twice, by two handles");
    ensure!(volume.try_lock(path("other"))?.is_some(), "another lock is not free");
    drop(held);
    ensure!(hosts.second.try_lock(path("lock"))?.is_some(), "the lock stayed when its guard went");
    ensure_fails("lock nowhere", volume.try_lock(path("x/lock")), NotFound)?;
    volume.create_dir(path("d"))?;
    ensure_fails("lock a directory", volume.try_lock(path("d")), Invalid)?;
    Ok(())
}
