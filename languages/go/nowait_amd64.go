package sakia

const sysPreadv2 = 327
