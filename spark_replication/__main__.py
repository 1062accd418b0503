from spark_replication.admin.cli.main import main

main()
