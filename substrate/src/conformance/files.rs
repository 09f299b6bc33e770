//! Open files: reads, gathered writes, lengths.

use std::io::IoSlice;

use super::{Check, Hosts, Outcome, at_once, ensure, ensure_fails, get, path, put};
use crate::ErrorClass::{Exists, Invalid, NotFound};
use crate::OpenMode;

pub(super) const CHECKS: &[Check] = &[
    Check { name: "a file is created exclusively and opened only if it is there", run: open_modes },
    Check { name: "a handle for reading does not write", run: read_only },
    Check { name: "reads stop at the end of the file", run: reads },
    Check { name: "a gathered write has all its parts in order", run: gathered_writes },
    Check { name: "a write overwrites in place and a gap is zeros", run: overwrites },
    Check { name: "a length is cut and extended with zeros", run: lengths },
    Check { name: "what is not known to be zeros has all that was written", run: holes },
    Check { name: "a read that must not wait returns the right bytes or none", run: nowait },
    Check { name: "a file is read while it is appended to", run: read_while_appending },
    Check { name: "making a file durable leaves it as it is", run: make_durable },
    Check { name: "a large write arrives whole", run: large_write },
];

fn open_modes(hosts: &Hosts) -> Outcome {
    let volume = hosts.first.as_ref();
    volume.create_dir(path("d"))?;
    for mode in [OpenMode::Read, OpenMode::ReadUncached, OpenMode::Write] {
        ensure_fails("open nothing", volume.open(path("d/f"), mode), NotFound)?;
        ensure_fails("open a directory", volume.open(path("d"), mode), Invalid)?;
    }
    let file = put(volume, "d/f", b"content")?;
    ensure!(file.length()? == 7, "a new file has a wrong length");
    for taken in ["d/f", "d"] {
        ensure_fails("create what is there", volume.open(path(taken), OpenMode::CreateNew), Exists)?;
    }
    ensure!(get(volume, "d/f")? == b"content", "a refused create cut the file");
    volume.open(path("d/f"), OpenMode::Write)?;
    ensure!(get(volume, "d/f")? == b"content", "an open for writing cut the file");
    ensure_fails("create nowhere", volume.open(path("x/f"), OpenMode::CreateNew), NotFound)?;
    ensure_fails("create below a file", volume.open(path("d/f/g"), OpenMode::CreateNew), Invalid)?;
    ensure_fails("open below a file", volume.open(path("d/f/g"), OpenMode::Read), Invalid)?;
    Ok(())
}

fn read_only(hosts: &Hosts) -> Outcome {
    let volume = hosts.first.as_ref();
    put(volume, "f", b"content")?;
    for mode in [OpenMode::Read, OpenMode::ReadUncached] {
        let file = volume.open(path("f"), mode)?;
        ensure_fails("write", file.write_all_at(&[IoSlice::new(b"x")], 0), Invalid)?;
        ensure_fails("set the length", file.set_length(0), Invalid)?;
    }
    ensure!(get(volume, "f")? == b"content", "it wrote");
    Ok(())
}

fn reads(hosts: &Hosts) -> Outcome {
    let volume = hosts.first.as_ref();
    put(volume, "f", b"0123456789")?;
    for mode in [OpenMode::Read, OpenMode::ReadUncached, OpenMode::Write] {
        let file = volume.open(path("f"), mode)?;
        let mut buf = [b'-'; 6];
        ensure!(file.read_at(&mut buf, 2)? == 6 && &buf == b"234567", "{mode:?}: in the middle: {buf:?}");
        let mut buf = [b'-'; 6];
        ensure!(file.read_at(&mut buf, 7)? == 3, "{mode:?}: at the end");
        ensure!(buf.starts_with(b"789"), "{mode:?}: at the end: {buf:?}");
        ensure!(file.read_at(&mut buf, 10)? == 0, "{mode:?}: at the very end");
        ensure!(file.read_at(&mut buf, 1 << 40)? == 0, "{mode:?}: far behind the end");
        ensure!(file.read_at(&mut [], 0)? == 0, "{mode:?}: nothing asked for");
    }
    Ok(())
}

fn gathered_writes(hosts: &Hosts) -> Outcome {
    let volume = hosts.first.as_ref();
    let file = volume.open(path("f"), OpenMode::CreateNew)?;
    file.write_all_at(&[], 0)?;
    file.write_all_at(&[IoSlice::new(b""), IoSlice::new(b"")], 5)?;
    ensure!(file.length()? == 0, "writing nothing wrote something");
    file.write_all_at(&[IoSlice::new(b"ab"), IoSlice::new(b""), IoSlice::new(b"c")], 1)?;
    ensure!(get(volume, "f")? == b"\0abc", "few parts");
    // More parts than one system call takes, of different lengths, some empty.
    let texts: Vec<Vec<u8>> = (0..5000usize).map(|n| n.to_string().repeat(n % 7).into_bytes()).collect();
    let parts: Vec<_> = texts.iter().map(|text| IoSlice::new(text)).collect();
    file.write_all_at(&parts, 4)?;
    let expected = [b"\0abc".to_vec(), texts.concat()].concat();
    ensure!(get(volume, "f")? == expected, "many parts");
    Ok(())
}

fn overwrites(hosts: &Hosts) -> Outcome {
    let volume = hosts.first.as_ref();
    let file = put(volume, "f", b"0123456789")?;
    file.write_all_at(&[IoSlice::new(b"AB"), IoSlice::new(b"C")], 4)?;
    file.write_all_at(&[IoSlice::new(b"z")], 12)?;
    ensure!(get(volume, "f")? == b"0123ABC789\0\0z", "found {:?}", get(volume, "f"));
    let other = volume.open(path("f"), OpenMode::Write)?;
    other.write_all_at(&[IoSlice::new(b"w")], 0)?;
    let mut buf = [0; 1];
    file.read_at(&mut buf, 0)?;
    ensure!(&buf == b"w", "two handles of one host see different bytes");
    Ok(())
}

fn lengths(hosts: &Hosts) -> Outcome {
    let volume = hosts.first.as_ref();
    let file = put(volume, "f", b"0123456789")?;
    file.set_length(4)?;
    ensure!(file.length()? == 4 && get(volume, "f")? == b"0123", "cutting");
    file.set_length(6)?;
    ensure!(file.length()? == 6 && get(volume, "f")? == b"0123\0\0", "extending brings old bytes back");
    file.write_all_at(&[IoSlice::new(b"xy")], 3)?;
    file.set_length(0)?;
    ensure!(file.length()? == 0 && get(volume, "f")?.is_empty(), "emptying");
    file.sync_data()?;
    Ok(())
}

fn holes(hosts: &Hosts) -> Outcome {
    let volume = hosts.first.as_ref();
    let file = put(volume, "f", b"begin")?;
    file.write_all_at(&[IoSlice::new(b"end")], 1 << 20)?;
    file.set_length(2 << 20)?;
    file.sync_data()?;
    // Whatever the volume knows of holes: all that is written is in what it says, in order.
    let (mut at, mut found) = (0, Vec::new());
    while let Some((begin, end)) = file.next_data(at)? {
        ensure!(begin >= at && end > begin && end <= 2 << 20, "{begin} to {end} behind {at}");
        found.push(begin..end);
        at = end;
    }
    for written in [0_u64, 4, 1 << 20, (1 << 20) + 2] {
        ensure!(found.iter().any(|range| range.contains(&written)), "byte {written} is in none of {found:?}");
    }
    ensure!(file.next_data(2 << 20)?.is_none(), "there is something behind the end");
    Ok(())
}

fn nowait(hosts: &Hosts) -> Outcome {
    let volume = hosts.first.as_ref();
    let bytes: Vec<u8> = (0..=255).cycle().take(300_000).collect();
    put(volume, "f", &bytes)?;
    let file = volume.open(path("f"), OpenMode::Read)?;
    for offset in [0usize, 4096, 123_456, 299_990, 300_000, 400_000] {
        let mut buf = vec![0; 1000];
        let Some(read) = file.read_at_nowait(&mut buf, offset as u64)? else { continue };
        let there = bytes.get(offset..).unwrap_or_default();
        ensure!(read <= there.len().min(1000), "{read} bytes read at {offset}");
        ensure!(buf.get(..read) == there.get(..read), "wrong bytes at {offset}");
        ensure!(read > 0 || there.is_empty(), "zero bytes at {offset} say that the file ends there");
    }
    Ok(())
}

fn read_while_appending(hosts: &Hosts) -> Outcome {
    const STEP: usize = 1000;
    const STEPS: usize = 400;
    let volume = hosts.first.as_ref();
    let file = volume.open(path("f"), OpenMode::CreateNew)?;
    let writer = || -> Outcome {
        for n in 0..STEPS {
            let bytes = vec![u8::try_from(n % 255 + 1).unwrap_or(1); STEP];
            file.write_all_at(&[IoSlice::new(&bytes)], (n * STEP) as u64)?;
        }
        Ok(())
    };
    let reader = || -> Outcome {
        let mut seen = 0;
        let mut buf = vec![0; STEP];
        while seen < STEPS {
            let read = file.read_at(&mut buf, (seen * STEP) as u64)?;
            let expected = u8::try_from(seen % 255 + 1).unwrap_or(1);
            let right = buf.iter().take(read).all(|byte| *byte == expected);
            ensure!(right, "bytes of append {seen} are not what was written");
            seen += usize::from(read == STEP);
        }
        Ok(())
    };
    for outcome in at_once(vec![Box::new(writer), Box::new(reader)]) {
        ensure!(outcome.is_some(), "a thread panicked");
        outcome.unwrap_or(Ok(()))?;
    }
    Ok(())
}

fn make_durable(hosts: &Hosts) -> Outcome {
    let volume = hosts.first.as_ref();
    let file = volume.open(path("f"), OpenMode::CreateNew)?;
    file.write_all_at(&[IoSlice::new(b"content")], 0)?;
    for length in [0, 3, 7, 1 << 20] {
        hosts.second.make_durable(path("f"), length)?;
        volume.make_durable(path("f"), length)?;
    }
    ensure!(get(volume, "f")? == b"content", "it changed");
    ensure_fails("make nothing durable", volume.make_durable(path("x"), 1), NotFound)?;
    Ok(())
}

fn large_write(hosts: &Hosts) -> Outcome {
    let volume = hosts.first.as_ref();
    let bytes: Vec<u8> = (0..=250).cycle().take(9_000_001).collect();
    let file = volume.open(path("f"), OpenMode::CreateNew)?;
    let parts: Vec<_> = bytes.chunks(700_001).map(IoSlice::new).collect();
    file.write_all_at(&parts, 17)?;
    file.sync_data()?;
    let found = get(hosts.second.as_ref(), "f")?;
    ensure!(found.len() == bytes.len() + 17, "{} bytes", found.len());
    ensure!(found.get(17..) == Some(bytes.as_slice()), "other bytes");
    Ok(())
}
