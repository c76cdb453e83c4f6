type t = Raw.waker

let wake = Raw.waker_wake
let of_object it = it
