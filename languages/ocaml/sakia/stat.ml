type kind = Regular | Directory | Symlink | Fifo | Socket | Character | Block | Unknown
type time = { seconds : int; nanoseconds : int }

type t = {
  kind : kind;
  permissions : int;
  links : int;
  uid : int;
  gid : int;
  inode : int;
  size : int;
  blocks : int;
  block_size : int;
  device : int * int;
  special : int * int;
  accessed : time;
  modified : time;
  changed : time;
  born : time option;
  mount : int option;
}

let size = 256

external get_16 : Buf.memory -> int -> int = "%caml_bigstring_get16"
external get_32 : Buf.memory -> int -> int32 = "%caml_bigstring_get32"
external get_64 : Buf.memory -> int -> int64 = "%caml_bigstring_get64"

let kind_of_int = function
  | 8 -> Regular
  | 4 -> Directory
  | 10 -> Symlink
  | 1 -> Fifo
  | 12 -> Socket
  | 2 -> Character
  | 6 -> Block
  | _ -> Unknown

let statx_btime = 0x800
let statx_mnt_id = 0x1000

let of_buf buf =
  let memory = Buf.memory buf in
  let u32 at = Int32.to_int (get_32 memory at) land 0xffffffff in
  let i64 at = Int64.to_int (get_64 memory at) in
  let time at = { seconds = i64 at; nanoseconds = u32 (at + 8) } in
  let mask = u32 0 and mode = get_16 memory 28 in
  {
    kind = kind_of_int (mode lsr 12);
    permissions = mode land 0o7777;
    links = u32 16;
    uid = u32 20;
    gid = u32 24;
    inode = i64 32;
    size = i64 40;
    blocks = i64 48;
    block_size = u32 4;
    device = (u32 136, u32 140);
    special = (u32 128, u32 132);
    accessed = time 64;
    modified = time 112;
    changed = time 96;
    born = (if mask land statx_btime <> 0 then Some (time 80) else None);
    mount = (if mask land statx_mnt_id <> 0 then Some (i64 144) else None);
  }

(* As gnu_dev_makedev(3). *)
let number (major, minor) =
  (minor land 0xff) lor ((major land 0xfff) lsl 8) lor ((minor land lnot 0xff) lsl 12) lor
    ((major land lnot 0xfff) lsl 32)

let to_unix it =
  let float { seconds; nanoseconds } = float_of_int seconds +. (1e-9 *. float_of_int nanoseconds) in
  {
    Unix.LargeFile.st_dev = number it.device;
    st_ino = it.inode;
    st_kind =
      (match it.kind with
      | Regular | Unknown -> Unix.S_REG
      | Directory -> S_DIR
      | Symlink -> S_LNK
      | Fifo -> S_FIFO
      | Socket -> S_SOCK
      | Character -> S_CHR
      | Block -> S_BLK);
    st_perm = it.permissions;
    st_nlink = it.links;
    st_uid = it.uid;
    st_gid = it.gid;
    st_rdev = number it.special;
    st_size = Int64.of_int it.size;
    st_atime = float it.accessed;
    st_mtime = float it.modified;
    st_ctime = float it.changed;
  }
