module quell.example/runtimes

go 1.22
