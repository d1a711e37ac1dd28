module quell/go-gc

go 1.22
