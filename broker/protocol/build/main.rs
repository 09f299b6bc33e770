//! Generates the messages from the tables in `schema/`. No dependency, no input but the tables.
//!
//! Two files go to `OUT_DIR`: `messages.rs`, which is the library, and `random.rs`, which tests include to make values of
//! every message in every version.

mod emit;
mod expressions;
mod model;
mod parse;
mod random;
mod registry;

use std::error::Error;
use std::path::Path;
use std::{env, fs};

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=schema");
    println!("cargo::rerun-if-changed=build");
    let mut paths: Vec<_> =
        fs::read_dir("schema")?.map(|entry| entry.map(|entry| entry.path())).collect::<Result<_, _>>()?;
    paths.retain(|path| {
        path.extension().is_some_and(|extension| extension == "txt") && !path.ends_with("README.txt")
    });
    let mut apis = Vec::new();
    for path in paths {
        let text = fs::read_to_string(&path)?;
        let api = parse::api(&text).map_err(|error| format!("{}: {error}", path.display()))?;
        apis.push(api);
    }
    apis.sort_by_key(|api| api.key);
    for pair in apis.windows(2) {
        if let [first, second] = pair
            && first.key == second.key
        {
            return Err(format!("{} and {} have the same key", first.name, second.name).into());
        }
    }
    let out = env::var("OUT_DIR")?;
    let mut code = String::new();
    registry::emit(&mut code, &apis);
    for api in &apis {
        emit::api(&mut code, api);
    }
    fs::write(Path::new(&out).join("messages.rs"), code)?;
    let mut code = String::new();
    random::emit(&mut code, &apis);
    fs::write(Path::new(&out).join("random.rs"), code)?;
    Ok(())
}
