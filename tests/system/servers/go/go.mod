module unlade.example/server

go 1.22
