let c = Raw.constants ()
let o_rdonly = c.(0)
let o_wronly = c.(1)
let o_rdwr = c.(2)
let o_creat = c.(3)
let o_excl = c.(4)
let o_trunc = c.(5)
let o_append = c.(6)
let o_nonblock = c.(7)
let o_sync = c.(8)
let o_dsync = c.(9)
let o_cloexec = c.(10)
let o_direct = c.(11)
let o_directory = c.(12)
let o_nofollow = c.(13)
let o_path = c.(14)
let o_noatime = c.(15)
let o_tmpfile = c.(16)
let o_noctty = c.(17)
let at_removedir = c.(18)
let at_symlink_nofollow = c.(19)
let at_symlink_follow = c.(20)
let at_empty_path = c.(21)
let pollin = c.(22)
let pollout = c.(23)
let pollerr = c.(24)
let pollhup = c.(25)
let pollpri = c.(26)
let pollrdhup = c.(27)
let msg_peek = c.(28)
let msg_more = c.(29)
let msg_nosignal = c.(30)
let msg_dontwait = c.(31)
let msg_oob = c.(32)
let msg_trunc = c.(33)
let msg_ctrunc = c.(34)
let msg_waitall = c.(35)
let msg_cmsg_cloexec = c.(36)
let rename_noreplace = c.(37)
let rename_exchange = c.(38)
let af_unix = c.(39)
let af_inet = c.(40)
let af_inet6 = c.(41)
let sock_stream = c.(42)
let sock_dgram = c.(43)
let sock_seqpacket = c.(44)
let sock_nonblock = c.(45)
let shut_rd = c.(46)
let shut_wr = c.(47)
let shut_rdwr = c.(48)
let utime_now = c.(49)
let utime_omit = c.(50)
let eagain = c.(51)
let ecanceled = c.(52)
let eperm = c.(53)
let ebadf = c.(54)
let einval = c.(55)
let enosys = c.(56)
let exdev = c.(57)
let eintr = c.(58)
let enoent = c.(59)
let ebusy = c.(60)
let resolve_no_xdev = 0x01
let resolve_no_magiclinks = 0x02
let resolve_no_symlinks = 0x04
let resolve_beneath = 0x08
let resolve_in_root = 0x10
let resolve_cached = 0x20
let current_position = -1

let of_open_flags flags =
  let one = function
    | Unix.O_RDONLY -> o_rdonly
    | O_WRONLY -> o_wronly
    | O_RDWR -> o_rdwr
    | O_NONBLOCK -> o_nonblock
    | O_APPEND -> o_append
    | O_CREAT -> o_creat
    | O_TRUNC -> o_trunc
    | O_EXCL -> o_excl
    | O_NOCTTY -> o_noctty
    | O_DSYNC -> o_dsync
    | O_SYNC | O_RSYNC -> o_sync
    | O_SHARE_DELETE | O_CLOEXEC | O_KEEPEXEC -> 0
  in
  List.fold_left (fun all flag -> all lor one flag) 0 flags

let of_domain = function Unix.PF_UNIX -> af_unix | PF_INET -> af_inet | PF_INET6 -> af_inet6

let of_type = function
  | Unix.SOCK_STREAM -> sock_stream
  | SOCK_DGRAM -> sock_dgram
  | SOCK_SEQPACKET -> sock_seqpacket
  | SOCK_RAW -> invalid_arg "Sakia: SOCK_RAW"

let of_shutdown = function
  | Unix.SHUTDOWN_RECEIVE -> shut_rd
  | SHUTDOWN_SEND -> shut_wr
  | SHUTDOWN_ALL -> shut_rdwr

let error = Raw.error_of_code
