//! What the mount table says: options under which a broker would refuse the volume, however well it does while it is looked
//! at, and file systems that keep nothing.

use kaas_substrate::recognise::is_in_memory;

use super::check::{Basis, Check, Probe};
use super::protocol::Volume;

/// Judges the mounts of both processes.
pub fn judge(a: &Volume, b: &Volume) -> Check {
    let mut probe = Probe::new("mount_options", "mount options", Basis::Mount);
    for refused in [a, b].iter().filter_map(|volume| volume.refused.as_ref()) {
        probe.violation(refused.clone());
    }
    if [a, b].iter().any(|volume| is_in_memory(&volume.file_system)) {
        probe.violation("in memory: nothing survives a restart of the host");
    }
    let told = |option: &&String| TOLD.iter().any(|told| option.starts_with(told));
    let options: Vec<_> = a.options.iter().filter(told).cloned().collect();
    probe.end(if options.is_empty() { "nothing against them".to_owned() } else { options.join(", ") })
}

/// Options worth showing.
const TOLD: &[&str] =
    &["vers=", "hard", "proto=", "rsize=", "wsize=", "timeo=", "actimeo=", "noac", "lookupcache=", "sync"];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::qualify::check::Outcome;
    use crate::qualify::protocol::Family;

    fn volume(refused: Option<&str>) -> Volume {
        Volume {
            family: Family::Nfs,
            file_system: String::new(),
            source: String::new(),
            mounted_on: String::new(),
            options: ["rw", "vers=4.2", "relatime", "hard"].map(str::to_owned).to_vec(),
            refused: refused.map(str::to_owned),
            device: 1,
            total_bytes: None,
            available_bytes: None,
        }
    }

    #[test]
    fn a_mount_that_a_broker_refuses_fails_with_its_reason() {
        let (good, bad) = (volume(None), volume(Some("it is mounted soft; mount it with hard")));
        let check = judge(&good, &good);
        assert_eq!((check.outcome, check.detail.as_str()), (Outcome::Passed, "vers=4.2, hard"));
        for check in [judge(&bad, &good), judge(&good, &bad), judge(&bad, &bad)] {
            assert_eq!(check.outcome, Outcome::Failed);
            assert!(check.detail.starts_with("it is mounted soft; mount it with hard"), "{}", check.detail);
        }
    }

    #[test]
    fn a_file_system_in_memory_fails() {
        let in_memory = Volume { file_system: "tmpfs".to_owned(), ..volume(None) };
        let check = judge(&in_memory, &in_memory);
        assert_eq!(check.outcome, Outcome::Failed);
        assert_eq!(check.detail, "in memory: nothing survives a restart of the host");
    }
}
