//! The programs that copy, and the search for them.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::{Mode, Options, SAKIA};
use crate::results::Missing;

/// A program and its arguments, to which source and destination are added.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The name of the variant.
    pub name: String,
    /// The program and its arguments. A program without a slash in its name is searched for.
    pub command: Vec<String>,
}

/// A program that was found, with its arguments.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Way {
    pub(super) name: String,
    pub(super) program: PathBuf,
    pub(super) arguments: Vec<OsString>,
    /// Set if it prints a report of its work, as JSON.
    pub(super) reports: bool,
    /// Set if a source that is a directory gets a slash at its end.
    pub(super) slash: bool,
}

/// A known program.
struct Known {
    name: &'static str,
    /// `None`: Sakia itself.
    program: Option<&'static str>,
    arguments: &'static [&'static str],
    /// Set if it is measured by default.
    is_usual: bool,
}

const fn other(
    name: &'static str,
    program: &'static str,
    arguments: &'static [&'static str],
) -> Known {
    Known { name, program: Some(program), arguments, is_usual: true }
}

const fn sakia(name: &'static str, arguments: &'static [&'static str]) -> Known {
    Known { name, program: None, arguments, is_usual: true }
}

const PLAIN: &[Known] = &[
    other("cp", "cp", &["-r"]),
    other("cp-again", "cp", &["-r"]),
    sakia("sakia", &["cp", "-r", "--json"]),
    Known { is_usual: false, ..sakia("sakia-4k", &["cp", "-r", "--json", "--buffer", "4K"]) },
    Known { is_usual: false, ..sakia("sakia-1m", &["cp", "-r", "--json", "--buffer", "1M"]) },
    other("xcp", "xcp", &["-r", "--no-progress"]),
    other("cpz", "cpz", &[]),
    other("fcp", "fcp", &[]),
    other("rsync", "rsync", &["-a"]),
];

const ARTICLE: &[Known] = &[
    other("cp", "cp", &["-r"]),
    other("cp-again", "cp", &["-r"]),
    sakia("sakia", &["cp", "-r", "--json"]),
    sakia("sakia-4k-1", &["cp", "-r", "--json", "--buffer", "4K", "--limit", "1"]),
    sakia("sakia-4k-2", &["cp", "-r", "--json", "--buffer", "4K", "--limit", "2"]),
    sakia("sakia-4k-64", &["cp", "-r", "--json", "--buffer", "4K", "--limit", "64"]),
    sakia("sakia-1m-1", &["cp", "-r", "--json", "--buffer", "1M", "--limit", "1"]),
    sakia("sakia-1m-2", &["cp", "-r", "--json", "--buffer", "1M", "--limit", "2"]),
    sakia("sakia-1m-64", &["cp", "-r", "--json", "--buffer", "1M", "--limit", "64"]),
];

const ARCHIVE: &[Known] = &[
    other("cp", "cp", &["-a"]),
    other("cp-again", "cp", &["-a"]),
    sakia("sakia", &["cp", "-a", "--json"]),
    other("rsync", "rsync", &["-aHAXS"]),
];

/// Durable copies; all but the first, which shows the cost of durability.
const DURABLE: &[Known] = &[
    other("cp", "cp", &["-r"]),
    other("cp-fdatasync", "sh", &["-c", EACH, "sh"]),
    other("cp-syncfs", "sh", &["-c", "cp -r \"$1\" \"$2\" && sync -f \"$2\"", "sh"]),
    sakia("sakia", &["cp", "-r", "--fsync", "--json"]),
];
/// `sync -d` makes a `fdatasync(2)` of each file given.
const EACH: &str = "cp -r \"$1\" \"$2\" && find \"$2\" -type f -exec sync -d {} +";

fn known(mode: Mode) -> &'static [Known] {
    match mode {
        Mode::Plain => PLAIN,
        Mode::Article => ARTICLE,
        Mode::Archive => ARCHIVE,
        Mode::Durable => DURABLE,
    }
}

/// Returns the names of all variants.
pub(super) fn names(options: &Options) -> Vec<&str> {
    let known = known(options.mode).iter().map(|known| known.name);
    let mut names: Vec<&str> = known.collect();
    for peer in &options.peers {
        if !names.contains(&peer.name.as_str()) {
            names.push(&peer.name);
        }
    }
    names
}

/// Returns the available programs, in the order in which they are shown, and the missing ones.
pub(super) fn find(options: &Options) -> (Vec<Way>, Vec<Missing>) {
    let (mut ways, mut missing) = (Vec::new(), Vec::new());
    for name in names(options) {
        let peer = options.peers.iter().find(|peer| peer.name == name);
        let known = known(options.mode).iter().find(|known| known.name == name);
        let is_usual = peer.is_some() || known.is_some_and(|known| known.is_usual);
        let is_wanted = match options.variants.as_slice() {
            [] => is_usual,
            wanted => wanted.iter().any(|wanted| wanted == name),
        };
        if !is_wanted {
            continue;
        }
        let found = match (peer, known) {
            (Some(peer), _) => of_peer(peer, options),
            (None, Some(known)) => of_known(known, options),
            (None, None) => continue,
        };
        match found {
            Ok(way) => ways.push(way),
            Err(reason) => {
                missing.push(Missing { variant: lasting(name), reason, is_failure: false });
            }
        }
    }
    (ways, missing)
}

fn of_known(known: &Known, options: &Options) -> Result<Way, String> {
    let program = match known.program {
        Some(program) => search(program, options.search.as_deref())?,
        None => options.program.clone().ok_or("no program of Sakia's")?,
    };
    Ok(Way {
        name: known.name.into(),
        program,
        arguments: known.arguments.iter().map(OsString::from).collect(),
        reports: known.program.is_none(),
        slash: known.program == Some("rsync"),
    })
}

fn of_peer(peer: &Peer, options: &Options) -> Result<Way, String> {
    let (program, arguments) = peer.command.split_first().ok_or("no command")?;
    Ok(Way {
        name: peer.name.clone(),
        program: search(program, options.search.as_deref())?,
        arguments: arguments.iter().map(OsString::from).collect(),
        // A replacement for Sakia reports as Sakia does.
        reports: peer.name.starts_with(SAKIA),
        slash: false,
    })
}

/// Returns the program of this name.
fn search(name: &str, path: Option<&OsStr>) -> Result<PathBuf, String> {
    let is_program = |path: &Path| {
        let found = fs::metadata(path);
        found.is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
    };
    if name.contains('/') {
        let path = std::path::absolute(name).unwrap_or_else(|_| name.into());
        return if is_program(&path) { Ok(path) } else { Err(format!("{name} is no program")) };
    }
    let mut places = path.map(env::split_paths).into_iter().flatten();
    let found = places.find_map(|place| Some(place.join(name)).filter(|path| is_program(path)));
    found.ok_or_else(|| format!("{name} is not in PATH"))
}

/// Returns a name that is never freed: there are few.
pub(super) fn lasting(name: &str) -> &'static str {
    Box::leak(name.to_owned().into_boxed_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(mode: Mode, search: &Path) -> Options {
        Options {
            mode,
            search: Some(search.into()),
            program: Some("/sakia".into()),
            ..Options::default()
        }
    }

    /// Returns a directory with programs of these names.
    fn programs(names: &[&str]) -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        for name in names {
            let path = directory.path().join(name);
            fs::write(&path, "").unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        }
        fs::write(directory.path().join("fcp"), "no program").unwrap();
        directory
    }

    fn found(options: &Options) -> (Vec<String>, Vec<&'static str>) {
        let (ways, missing) = find(options);
        let ways = ways.into_iter().map(|way| way.name).collect();
        (ways, missing.into_iter().map(|missing| missing.variant).collect())
    }

    #[test]
    fn what_is_not_there_is_told() {
        let programs = programs(&["cp", "rsync", "xcp"]);
        let options = options(Mode::Plain, programs.path());
        let (ways, missing) = found(&options);
        assert_eq!(ways, ["cp", "cp-again", "sakia", "xcp", "rsync"]);
        assert_eq!(missing, ["cpz", "fcp"]);
        assert_eq!(find(&options).1[0].reason, "cpz is not in PATH");
        let (ways, missing) = find(&Options { program: None, ..options });
        assert!(ways.iter().all(|way| way.reports == (way.name == "sakia")));
        assert_eq!(missing[0].reason, "no program of Sakia's");
    }

    #[test]
    fn variants_are_chosen_and_shown_in_order() {
        let programs = programs(&["cp"]);
        let variants = ["sakia-1m".into(), "cp".into()].to_vec();
        let options = Options { variants, ..options(Mode::Plain, programs.path()) };
        assert_eq!(found(&options).0, ["cp", "sakia-1m"]);
        let (ways, _) = find(&options);
        assert_eq!(ways[1].arguments, ["cp", "-r", "--json", "--buffer", "1M"]);
    }

    #[test]
    fn article_has_all_buffers_with_all_limits() {
        let programs = programs(&["cp"]);
        let (ways, _) = find(&options(Mode::Article, programs.path()));
        let matrix: Vec<_> = ways.iter().filter(|way| way.arguments.len() == 7).collect();
        assert_eq!((ways.len(), matrix.len()), (9, 6));
        assert_eq!(matrix[2].arguments[3..], ["--buffer", "4K", "--limit", "64"]);
    }

    #[test]
    fn peers_are_added_or_take_a_place() {
        let programs = programs(&["cp"]);
        let peer = |name: &str, command: &[&str]| Peer {
            name: name.into(),
            command: command.iter().map(|&word| word.into()).collect(),
        };
        let peers = vec![peer("mine", &["cp", "-R", "-P"]), peer("sakia", &["/nonexistent"])];
        let options = Options { peers, ..options(Mode::Archive, programs.path()) };
        let (ways, missing) = find(&options);
        assert_eq!((ways.last().unwrap().name.as_str(), ways.len()), ("mine", 3));
        assert_eq!(ways[2].arguments, ["-R", "-P"]);
        assert_eq!(missing[0].reason, "/nonexistent is no program");
        assert_eq!(missing[0].variant, "sakia");
    }
}
