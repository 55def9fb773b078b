module unlade.example/client

go 1.22
