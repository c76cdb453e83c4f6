//! Loop devices, attached and detached by their ioctls. Source: `loop(4)`.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use linux_raw_sys::loop_device as sys;
use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;

use crate::place::{PlaceError, mounts};

/// The longest time that a detaching device may take.
const PATIENCE: Duration = Duration::from_secs(1);
/// The scheduler of devices with a longer queue. Loop devices have none by default.
const SCHEDULER: &str = "mq-deadline";

/// A loop device over a file. It is detached with the value, or, if it is still in use, when that use ends.
#[derive(Debug)]
pub(crate) struct LoopDevice {
    node: PathBuf,
    /// Keeps the device from detaching itself before it is mounted. `None` while it is dropped.
    device: Option<OwnedFd>,
}

impl LoopDevice {
    /// Attaches the lowest free device to a file.
    pub(crate) fn attach(backing: &Path) -> Result<Self, PlaceError> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        let control = open("/dev/loop-control", flags, Mode::empty())
            .map_err(|errno| PlaceError::needing("open /dev/loop-control", errno))?;
        let file = open(backing, flags, Mode::empty())
            .map_err(|errno| PlaceError::failed(format!("open {}", backing.display()), errno))?;
        loop {
            // SAFETY: the call takes no memory, and has no effect but to make a device that is free.
            let number = unsafe { get_free(control.as_raw_fd()) }
                .map_err(|errno| PlaceError::needing("ask for a free loop device", errno))?;
            let node = PathBuf::from(format!("/dev/loop{number}"));
            let device = open(&node, flags, Mode::empty())
                .map_err(|errno| PlaceError::needing(format!("open {}", node.display()), errno))?;
            let configuration = configuration(&file);
            // SAFETY: the call reads one such structure, which lives through it, and nothing else.
            match unsafe { configure(device.as_raw_fd(), &raw const configuration) } {
                Ok(_) => {
                    // Limits of an earlier use outlive it.
                    lift_limits(&node);
                    return Ok(Self { node, device: Some(device) });
                }
                // Another process took the device first.
                Err(nix::Error::EBUSY) => {}
                Err(errno) => {
                    return Err(PlaceError::needing(
                        format!("configure {}", node.display()),
                        errno,
                    ));
                }
            }
        }
    }

    /// Returns the device's node.
    pub(crate) fn path(&self) -> PathBuf {
        self.node.clone()
    }

    /// Limits the dirty memory of this device to `bytes`, independent of the rest of the machine. Writers
    /// block beyond that.
    pub(crate) fn limit_dirty(&self, bytes: u64) -> Result<(), PlaceError> {
        let folder = limits_of(&self.node)
            .map_err(|error| PlaceError::needing("find the device's limits", error))?;
        write_settings(
            &folder,
            "kernel 6.2",
            [("strict_limit", "1"), ("max_bytes", &bytes.to_string())],
        )
    }

    /// Installs a scheduler with a queue of up to `count` requests, which merges neighbors.
    pub(crate) fn queue_requests(&self, count: u32) -> Result<(), PlaceError> {
        let settings = [("scheduler", SCHEDULER), ("nr_requests", &count.to_string())];
        write_settings(&block_of(&self.node).join("queue"), SCHEDULER, settings)
    }
}

/// Detaches it, and waits until the backing file is no longer in use. It does not wait if the device is
/// still in use elsewhere: it detaches when that ends.
impl Drop for LoopDevice {
    fn drop(&mut self) {
        let Some(device) = self.device.take() else { return };
        lift_limits(&self.node);
        // SAFETY: the call takes no memory; it ends our own use of the device.
        let _ = unsafe { clear(device.as_raw_fd()) };
        drop(device); // the device lasts as long
        let attached = block_of(&self.node).join("loop");
        let deadline = Instant::now() + PATIENCE;
        while attached.exists() && !is_mounted(&self.node) && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Writes to files of the kernel; `need` names the feature that the machine may lack.
fn write_settings(
    folder: &Path,
    need: &str,
    settings: [(&str, &str); 2],
) -> Result<(), PlaceError> {
    for (name, value) in settings {
        let file = folder.join(name);
        fs::write(&file, value).map_err(|error| {
            // The kernel reports a scheduler that it lacks as an invalid argument.
            let error = if name == "scheduler" { Errno::NOSYS.into() } else { error };
            PlaceError::needing(format!("set {} ({need})", file.display()), error)
        })?;
    }
    Ok(())
}

/// Returns the kernel's folder of a device's limits on dirty memory.
fn limits_of(node: &Path) -> io::Result<PathBuf> {
    let device = fs::read_to_string(block_of(node).join("dev"))?;
    Ok(Path::new("/sys/class/bdi").join(device.trim()))
}

/// Returns the kernel's folder of a device.
fn block_of(node: &Path) -> PathBuf {
    Path::new("/sys/block").join(node.file_name().unwrap_or_default())
}

/// Restores the kernel's defaults of a device, if it can be limited at all.
pub(crate) fn lift_limits(node: &Path) {
    let scheduler = block_of(node).join("queue/scheduler");
    if fs::read_to_string(&scheduler).is_ok_and(|all| all.contains(&format!("[{SCHEDULER}]"))) {
        let _ = fs::write(scheduler, "none");
    }
    if let Ok(folder) = limits_of(node) {
        let _ = fs::write(folder.join("strict_limit"), "0");
        let _ = fs::write(folder.join("max_ratio"), "100");
    }
}

fn is_mounted(node: &Path) -> bool {
    mounts().is_ok_and(|all| all.iter().any(|(_, source)| source == node))
}

/// Returns every attached loop device with its backing file.
pub(crate) fn attached() -> Vec<(String, PathBuf)> {
    let devices = fs::read_dir("/sys/block").into_iter().flatten().filter_map(io::Result::ok);
    let backing = |device: fs::DirEntry| {
        let name = device.file_name().into_string().ok()?;
        let file = fs::read(device.path().join("loop/backing_file")).ok()?;
        Some((name, OsStr::from_bytes(file.trim_ascii_end()).into()))
    };
    devices.filter_map(backing).collect()
}

fn configuration(backing: &OwnedFd) -> sys::loop_config {
    // SAFETY: the structure has numbers only, of which each may be 0.
    let mut configuration: sys::loop_config = unsafe { std::mem::zeroed() };
    configuration.fd = backing.as_raw_fd().cast_unsigned();
    // The last user detaches it, so that a killed process leaves no device.
    configuration.info.lo_flags = sys::LO_FLAGS_AUTOCLEAR as u32;
    configuration
}

nix::ioctl_none_bad!(get_free, sys::LOOP_CTL_GET_FREE);
nix::ioctl_write_ptr_bad!(configure, sys::LOOP_CONFIGURE, sys::loop_config);
nix::ioctl_none_bad!(clear, sys::LOOP_CLR_FD);
