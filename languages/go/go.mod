module sakia.invalid/languages/go

go 1.24
