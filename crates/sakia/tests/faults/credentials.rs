//! Privileges that are given up while a runtime works: all its later operations run without them.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use sakia::fs::{self, Dir, File, OpenOptions};
use sakia::io::Reader;
use sakia::spawn_on;
use sakia_driver::{Bypass, Policy};

use crate::support::{TempDir, on_each_backend};
use crate::{children, load};

on_each_backend! { are_those_of_the_process_when_it_asks }

const EACCES: Option<i32> = Some(libc::EACCES);
const NOBODY: u32 = 65_534;

fn are_those_of_the_process_when_it_asks(policy: Policy) {
    children::run("credentials", policy);
    children::run("credentials_without_bypass", policy);
}

pub fn scene_credentials(policy: Policy) -> Result<(), String> {
    play(policy, false)
}

pub fn scene_credentials_without_bypass(policy: Policy) -> Result<(), String> {
    play(policy, true)
}

fn play(policy: Policy, everything_queued: bool) -> Result<(), String> {
    // SAFETY: no arguments.
    if unsafe { libc::geteuid() } != 0 {
        return Err("only root has privileges to give up".into());
    }
    let folder = TempDir::new();
    let secrets = folder.join("secrets");
    std::fs::create_dir(&secrets).unwrap();
    std::fs::set_permissions(&secrets, PermissionsExt::from_mode(0o700)).unwrap();
    let secret = folder.join("secret");
    std::fs::write(&secret, "hidden").unwrap();
    std::fs::set_permissions(&secret, PermissionsExt::from_mode(0o600)).unwrap();
    let builder = sakia::Runtime::builder().backend(policy).threads(2);
    let builder = if everything_queued { builder.bypass(Bypass::Never) } else { builder };
    let runtime = builder.build().unwrap();
    runtime.block_on(async {
        // The kernel's workers and the threads of the lanes have started with privileges.
        load::run(&folder.join("load"), 4, 1).await;
        let open = File::open(&secret).await.unwrap();
        assert_eq!(everything(&secrets, &secret).await, [None; 9]);
        let elsewhere = (secrets.clone(), secret.clone());
        let there =
            spawn_on(1, move || async move { everything(&elsewhere.0, &elsewhere.1).await });
        assert_eq!(there.await.unwrap(), [None; 9]);

        // SAFETY: take numbers only. The C library changes each thread of the process.
        let is_changed = unsafe { libc::setgid(NOBODY) == 0 && libc::setuid(NOBODY) == 0 };
        assert!(is_changed, "setuid: {}", std::io::Error::last_os_error());
        assert_eq!(everything(&secrets, &secret).await, [EACCES; 9]);
        let elsewhere = (secrets.clone(), secret.clone());
        let there =
            spawn_on(1, move || async move { everything(&elsewhere.0, &elsewhere.1).await });
        assert_eq!(there.await.unwrap(), [EACCES; 9]);
        // Open files stay open.
        let mut reader = Reader::new(open);
        assert_eq!(reader.fill().await.unwrap(), b"hidden");
    });
    Ok(())
}

/// Tries all operations that need a permission. Returns their errno values.
async fn everything(secrets: &Path, secret: &Path) -> [Option<i32>; 9] {
    let errno = |error: fs::Error| error.raw_os_error().unwrap();
    let new = secrets.join("new");
    let mut write = OpenOptions::new();
    write.write(true);
    [
        fs::read(secret).await.err().map(errno),
        File::open(secret).await.err().map(errno),
        write.open(secret).await.err().map(errno),
        fs::write(&new, "new").await.err().map(errno),
        fs::metadata(&new).await.err().map(errno),
        fs::rename(&new, secrets.join("other")).await.err().map(errno),
        fs::remove_file(secrets.join("other")).await.err().map(errno),
        fs::create_dir_all(secrets.join("deep/deeper")).await.err().map(errno),
        Dir::open(secrets.join("deep")).await.err().map(errno),
    ]
}
