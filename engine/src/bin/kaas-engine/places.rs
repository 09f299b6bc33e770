//! Where an import may read and write: Kafka's directories and the data directory are apart, whatever the paths that lead
//! to them. A directory is told by its device and inode, so links and bind mounts hide nothing.

use std::io;
use std::path::Path;

use kaas_engine::import::Source;
use kaas_substrate::recognise::ids_upwards;

const APART: &str = "Kafka's directories are only read: name one that is apart from them";

/// Refuses with the reason, and what to do about it.
pub fn check(sources: &[Source], dir: &Path) -> io::Result<Result<(), (String, &'static str)>> {
    let above_dir = ids_upwards(dir)?;
    let own = if dir.exists() { above_dir.first().copied() } else { None };
    let shown = dir.display();
    let mut known = Vec::new();
    for Source { volume, only } in sources {
        let above = ids_upwards(volume.root())?;
        let Some(id) = above.first().copied() else { continue };
        let log_dir = volume.root().display();
        if known.contains(&(id, only)) {
            let given = only.as_ref().map_or(volume.root().to_owned(), |name| volume.root().join(name));
            return Ok(Err((format!("{} is given twice", given.display()), "give each directory once")));
        }
        known.push((id, only));
        let refused = if own == Some(id) {
            format!("{shown} cannot be both Kafka's log directory and the data directory")
        } else if above_dir.contains(&id) {
            format!("{shown} lies in Kafka's log directory {log_dir}")
        } else if own.is_some_and(|own| above.contains(&own)) {
            format!("Kafka's log directory {log_dir} lies in {shown}")
        } else {
            continue;
        };
        return Ok(Err((refused, APART)));
    }
    Ok(Ok(()))
}
