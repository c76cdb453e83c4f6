//! The calls that `rustix::fs` has unchanged: their kernel names and their types.

/// Passes the list to the macro `$to`.
macro_rules! calls_of_fs {
    ($to:ident) => {
        $to! {
            openat fn open(path: impl Arg, flags: OFlags, mode: Mode) -> OwnedFd;
            openat fn openat(dir: impl AsFd, path: impl Arg, flags: OFlags, mode: Mode) -> OwnedFd;
            fstat fn fstat(file: impl AsFd) -> Stat;
            newfstatat fn statat(dir: impl AsFd, path: impl Arg, flags: AtFlags) -> Stat;
            readlinkat fn readlinkat(dir: impl AsFd, path: impl Arg, reuse: Vec<u8>) -> CString;
            mkdirat fn mkdirat(dir: impl AsFd, path: impl Arg, mode: Mode) -> ();
            mknodat fn mknodat(dir: impl AsFd, path: impl Arg, kind: FileType, mode: Mode, device: Dev) -> ();
            symlinkat fn symlinkat(target: impl Arg, dir: impl AsFd, path: impl Arg) -> ();
            linkat fn linkat(
                from: impl AsFd, old: impl Arg, to: impl AsFd, new: impl Arg, flags: AtFlags
            ) -> ();
            renameat2 fn renameat_with(
                from: impl AsFd, old: impl Arg, to: impl AsFd, new: impl Arg, flags: RenameFlags
            ) -> ();
            unlinkat fn unlinkat(dir: impl AsFd, path: impl Arg, flags: AtFlags) -> ();
            fchmod fn fchmod(file: impl AsFd, mode: Mode) -> ();
            fchmodat fn chmodat(dir: impl AsFd, path: impl Arg, mode: Mode, flags: AtFlags) -> ();
            fchown fn fchown(file: impl AsFd, user: Option<Uid>, group: Option<Gid>) -> ();
            fchownat fn chownat(
                dir: impl AsFd, path: impl Arg, user: Option<Uid>, group: Option<Gid>, flags: AtFlags
            ) -> ();
            utimensat fn futimens(file: impl AsFd, times: &Timestamps) -> ();
            utimensat fn utimensat(dir: impl AsFd, path: impl Arg, times: &Timestamps, flags: AtFlags) -> ();
            flistxattr fn flistxattr(file: impl AsFd, list: &mut [u8]) -> usize;
            listxattr fn listxattr(path: impl Arg, list: &mut [u8]) -> usize;
            llistxattr fn llistxattr(path: impl Arg, list: &mut [u8]) -> usize;
            fgetxattr fn fgetxattr(file: impl AsFd, name: impl Arg, value: &mut [u8]) -> usize;
            getxattr fn getxattr(path: impl Arg, name: impl Arg, value: &mut [u8]) -> usize;
            lgetxattr fn lgetxattr(path: impl Arg, name: impl Arg, value: &mut [u8]) -> usize;
            fsetxattr fn fsetxattr(file: impl AsFd, name: impl Arg, value: &[u8], flags: XattrFlags) -> ();
            lsetxattr fn lsetxattr(path: impl Arg, name: impl Arg, value: &[u8], flags: XattrFlags) -> ();
            fremovexattr fn fremovexattr(file: impl AsFd, name: impl Arg) -> ();
            lremovexattr fn lremovexattr(path: impl Arg, name: impl Arg) -> ();
            ioctl fn ioctl_ficlone(to: impl AsFd, from: impl AsFd) -> ();
            ioctl fn ioctl_getflags(dir: impl AsFd) -> IFlags;
            ioctl fn ioctl_setflags(dir: impl AsFd, flags: IFlags) -> ();
            fadvise64 fn fadvise(file: impl AsFd, offset: u64, len: Option<NonZeroU64>, advice: Advice) -> ();
            lseek fn seek(file: impl AsFd, to: SeekFrom) -> u64;
            ftruncate fn ftruncate(file: impl AsFd, len: u64) -> ();
            fsync fn fsync(file: impl AsFd) -> ();
            syncfs fn syncfs(file: impl AsFd) -> ();
        }
    };
}
